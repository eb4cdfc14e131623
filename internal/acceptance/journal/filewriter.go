package journal

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// fileWriter writes the files of one move. Their keys have its random id, so they are new.
type fileWriter struct {
	store  Store
	bounds folderBounds
	number uint64
	id     RunID
	parts  int
}

// write writes sorted entries, in as many files as needed.
func (w *fileWriter) write(ctx context.Context, entries []Entry, first, last uint64) ([]FoldedFile, error) {
	var out []FoldedFile
	for part := range slices.Chunk(entries, w.bounds.perFile) {
		b, err := marshalFolded(part)
		if err != nil {
			return nil, err
		}
		f := FoldedFile{Span{
			Key: layout.JournalFolded(w.number, w.id, w.parts), First: first, Last: last, Entries: uint64(len(part)), Bytes: uint64(len(b)),
			MinAt: part[0].At, MaxAt: part[0].At, MinTime: part[0].MinTime, MaxTime: part[0].MaxTime,
		}}
		for i := range part {
			e := &part[i]
			f.MinAt, f.MaxAt = min(f.MinAt, e.At), max(f.MaxAt, e.At)
			f.MinTime, f.MaxTime = min(f.MinTime, e.MinTime), max(f.MaxTime, e.MaxTime)
		}
		w.parts++
		if err := w.create(ctx, f.Key, b, segmentContent); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// create writes an object that only this move writes. An attempt before may have written it already.
func (w *fileWriter) create(ctx context.Context, key string, b []byte, o objstore.PutOptions) error {
	there, created, err := objstore.CreateOrGet(ctx, w.store, key, b, int64(len(b)), o)
	if err == nil && !created && !bytes.Equal(there, b) {
		return &objstore.Error{Op: "create", Key: key, Err: fmt.Errorf("%w: with other bytes", objstore.ErrExists)}
	}
	return err
}

// merge replaces small neighbours of about one size by one file, and returns the keys of what it replaced.
func (w *fileWriter) merge(ctx context.Context, h *Head) (old []string, err error) {
	for {
		at, n := mergeable(h.Files, uint64(w.bounds.perFile))
		if n == 0 {
			return old, nil
		}
		group := h.Files[at : at+n]
		var entries []Entry
		for _, f := range group {
			es, err := ReadFile(ctx, w.store, f)
			if err != nil {
				return nil, err
			}
			entries = append(entries, es...)
			old = append(old, f.Key)
		}
		files, err := w.write(ctx, unique(entries), group[0].First, group[n-1].Last)
		if err != nil {
			return nil, err
		}
		h.Files = slices.Replace(h.Files, at, at+n, files...)
	}
}

// mergeable finds the first neighbours to merge: mergeWidth files of one size class, or fewer that
// fill more than half of a file when the next one would not fit.
func mergeable(files []FoldedFile, perFile uint64) (at, n int) {
	for i := range files {
		sum := files[i].Entries
		for n = 1; i+n < len(files) && n < mergeWidth; n++ {
			next := files[i+n].Entries
			if sizeClass(next) != sizeClass(files[i].Entries) {
				break
			}
			if sum+next > perFile {
				if n > 1 && sum > perFile/2 {
					return i, n
				}
				break
			}
			sum += next
		}
		if n == mergeWidth {
			return i, n
		}
	}
	return 0, 0
}

// sizeClass is the logarithm to the base mergeWidth.
func sizeClass(n uint64) int { return (bits.Len64(n) - 1) / 3 }

// list moves the older half of the files into a list when there are many, so that the head stays small.
func (w *fileWriter) list(ctx context.Context, h *Head) error {
	if len(h.Files) < 2*w.bounds.filesListed {
		return nil
	}
	files := h.Files[:w.bounds.filesListed]
	l, err := w.writeList(ctx, files)
	if err != nil {
		return err
	}
	h.Lists = append(h.Lists, l)
	h.Files = slices.Clone(h.Files[w.bounds.filesListed:])
	return nil
}

// writeList writes a list of files. Each has a key of its own as long as the id is.
func (w *fileWriter) writeList(ctx context.Context, files []FoldedFile) (FileList, error) {
	l := FileList{files[0].Span}
	l.Key, l.Entries, l.Bytes = layout.JournalList(w.number, w.id), 0, 0
	for _, f := range files {
		l.First, l.Last = min(l.First, f.First), max(l.Last, f.Last)
		l.Entries, l.Bytes = l.Entries+f.Entries, l.Bytes+f.Bytes
		l.MinAt, l.MaxAt = min(l.MinAt, f.MinAt), max(l.MaxAt, f.MaxAt)
		l.MinTime, l.MaxTime = min(l.MinTime, f.MinTime), max(l.MaxTime, f.MaxTime)
	}
	b, err := MarshalList(files)
	if err != nil {
		return l, err
	}
	return l, w.create(ctx, l.Key, b, headContent)
}
