package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// HeadKind and ListKind are the kinds of the head and of lists of folded files.
var (
	HeadKind = record.Kind{Schema: "lightmetrics.journal_head.v1", Title: "head of the journal", MaxBytes: 16 << 20, Exact: true}
	ListKind = record.Kind{Schema: "lightmetrics.journal_list.v1", Title: "list of folded files", MaxBytes: 4 << 20, Exact: true}
)

// Head says how far each run is folded, and which files have what was folded. It is replaced
// with If-Match only, and each move raises Number by one. The zero Head is that of a journal that
// nobody has folded yet.
type Head struct {
	Number uint64 `json:"number"`
	// Forgotten is the number of the move at which the last of the runs ended that the head does not name
	// any more. Who last saw an older head may never have seen such a run, and reads the files.
	Forgotten uint64 `json:"forgotten,omitempty"`
	// Lost is the number of the last move that dropped a file which can't be read any more. What it had stands nowhere
	// in the journal until an audit that began with this head or a later one has entered it: Begin.Covers.
	Lost uint64 `json:"lost,omitempty"`
	// Runs in the order of their ids.
	Runs []HeadRun `json:"runs"`
	// Lists name older files, Files the newer ones, both in the order of moves.
	Lists []FileList   `json:"lists,omitempty"`
	Files []FoldedFile `json:"files"`
}

// HeadRun is how far a run is folded.
type HeadRun struct {
	Run    RunID  `json:"run"`
	Writer string `json:"writer"`
	Role   Role   `json:"role"`
	// Folded segments, 0 to Folded-1, are in files. The first Deleted of them have been deleted, but
	// for a fence.
	Folded  uint64 `json:"folded"`
	Deleted uint64 `json:"deleted,omitempty"`
	// Ended is the number of the move that folded the run's last segment; 0 while it may have more.
	Ended uint64 `json:"ended,omitempty"`
	// Fenced: that segment is a fence, which is never deleted.
	Fenced bool `json:"fenced,omitempty"`
}

// Span is what a folded file, or a list of them, holds: the segments that the moves First to Last folded.
type Span struct {
	Key     string `json:"key"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Entries uint64 `json:"entries"`
	Bytes   uint64 `json:"bytes"`
	// MinAt and MaxAt of the entries' times of acceptance, MinTime and MaxTime of their samples; Unix nanoseconds.
	MinAt   int64 `json:"min_at_unix_ns"`
	MaxAt   int64 `json:"max_at_unix_ns"`
	MinTime int64 `json:"min_time_unix_ns"`
	MaxTime int64 `json:"max_time_unix_ns"`
}

// FoldedFile is one file of entries.
type FoldedFile struct{ Span }

// FileList is one object that lists folded files; Bytes are those of all of them.
type FileList struct{ Span }

type fileList struct {
	Files []FoldedFile `json:"files"`
}

func (s *Span) validate() error {
	if s.First == 0 || s.Last < s.First || s.Entries == 0 || s.Bytes == 0 || s.MaxAt < s.MinAt || s.MaxTime < s.MinTime || len(s.Key) > 256 || s.Key == "" {
		return fmt.Errorf("file %q of moves %d to %d, %d entries", s.Key, s.First, s.Last, s.Entries)
	}
	return nil
}

func (h *Head) validate() error {
	if h.Number == 0 || h.Forgotten > h.Number || h.Lost > h.Number {
		return fmt.Errorf("number %d, forgotten %d, lost %d", h.Number, h.Forgotten, h.Lost)
	}
	for i, r := range h.Runs {
		if i > 0 && h.Runs[i-1].Run.Compare(r.Run) >= 0 {
			return fmt.Errorf("run %s is out of order", r.Run)
		}
		if r.Folded == 0 || r.Deleted > r.Folded || r.Ended > h.Number || r.Fenced && r.Ended == 0 || !r.Role.valid() {
			return fmt.Errorf("run %s: %d folded, %d deleted, ended at %d", r.Run, r.Folded, r.Deleted, r.Ended)
		}
	}
	var spans []Span
	for _, l := range h.Lists {
		spans = append(spans, l.Span)
	}
	for _, f := range h.Files {
		spans = append(spans, f.Span)
	}
	return validateSpans(spans, h.Number)
}

func validateSpans(spans []Span, number uint64) error {
	for i := range spans {
		if err := spans[i].validate(); err != nil {
			return err
		}
		// Several files of one move stand beside each other; other spans follow one after the other.
		if spans[i].Last > number || i > 0 && spans[i].First < spans[i-1].First {
			return fmt.Errorf("file %q of moves %d to %d is out of order", spans[i].Key, spans[i].First, spans[i].Last)
		}
	}
	return nil
}

// Marshal writes the canonical JSON.
func (h Head) Marshal() ([]byte, error) {
	if err := h.validate(); err != nil {
		return nil, fmt.Errorf("head of the journal: %w", err)
	}
	if h.Runs == nil {
		h.Runs = []HeadRun{}
	}
	if h.Files == nil {
		h.Files = []FoldedFile{}
	}
	b := HeadKind.Marshal(h)
	if len(b) > HeadKind.MaxBytes {
		return nil, fmt.Errorf("head of the journal: %d bytes, at most %d", len(b), HeadKind.MaxBytes)
	}
	return b, nil
}

// ParseHead reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseHead(b []byte) (Head, error) {
	var h Head
	err := HeadKind.Unmarshal(b, &h)
	if err == nil {
		err = h.validate()
	}
	if err != nil {
		return Head{}, HeadKind.Wrap(layout.JournalHeadKey, err)
	}
	return h, nil
}

// ReadHead reads the head and its ETag. A journal that nobody has folded has the zero Head and no ETag.
func ReadHead(ctx context.Context, g objstore.Getter) (Head, string, error) {
	h, info, err := record.Read(ctx, g, layout.JournalHeadKey, HeadKind, ParseHead)
	if errors.Is(err, objstore.ErrNotFound) {
		return Head{}, "", nil
	}
	return h, info.ETag, err
}

// moveHead puts next in the place of the head with the ETag, "" where there is none, and returns its ETag. Nil means
// that it stands there.
func moveHead(ctx context.Context, s Store, etag string, next Head) (string, error) {
	b, err := next.Marshal()
	if err != nil {
		return "", err
	}
	var info objstore.Info
	if etag == "" {
		info, err = s.Create(ctx, layout.JournalHeadKey, b, headContent)
	} else {
		info, err = s.Replace(ctx, layout.JournalHeadKey, b, etag, headContent)
	}
	if err == nil {
		return info.ETag, nil
	}
	// The outcome may be unknown, or an earlier attempt of the store's own policy may have been applied. Only
	// what stands there tells, and nothing is deleted before.
	there, info, gerr := s.Get(ctx, layout.JournalHeadKey, objstore.GetOptions{Limit: int64(HeadKind.MaxBytes)})
	if gerr == nil && bytes.Equal(there, b) {
		return info.ETag, nil
	}
	return "", err
}

// Run finds a run; nil where the head does not name it.
func (h *Head) Run(id RunID) *HeadRun {
	if i, ok := slices.BinarySearchFunc(h.Runs, id, func(r HeadRun, id RunID) int { return r.Run.Compare(id) }); ok {
		return &h.Runs[i]
	}
	return nil
}

// Positions are those of somebody who has read everything that is folded, and nothing else.
func (h *Head) Positions() Positions {
	p := Positions{Head: h.Number}
	for _, r := range h.Runs {
		if r.Ended == 0 {
			p.Runs = append(p.Runs, RunPosition{Run: r.Run, Next: r.Folded})
		}
	}
	return p
}

// FilesAfter are the files with what was folded by moves after the given one; 0 is all of them.
func (h *Head) FilesAfter(ctx context.Context, g objstore.Getter, number uint64) ([]FoldedFile, error) {
	var out []FoldedFile
	for _, l := range h.Lists {
		if l.Last <= number {
			continue
		}
		files, err := readList(ctx, g, l)
		if err != nil {
			return nil, err
		}
		out = append(out, files...)
	}
	out = append(out, h.Files...)
	return slices.DeleteFunc(out, func(f FoldedFile) bool { return f.Last <= number }), nil
}

func readList(ctx context.Context, g objstore.Getter, l FileList) ([]FoldedFile, error) {
	files, _, err := record.Read(ctx, g, l.Key, ListKind, ParseList)
	return files, whatNow(l.Key, err)
}

// MarshalList writes a list of folded files, and ParseList reads it.
func MarshalList(files []FoldedFile) ([]byte, error) {
	b := ListKind.Marshal(fileList{files})
	_, err := ParseList(b)
	return b, err
}

// ParseList reads what MarshalList writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseList(b []byte) ([]FoldedFile, error) {
	var l fileList
	err := ListKind.Unmarshal(b, &l)
	if err == nil {
		spans := make([]Span, len(l.Files))
		for i := range l.Files {
			spans[i] = l.Files[i].Span
		}
		if err = validateSpans(spans, ^uint64(0)); err == nil && len(l.Files) == 0 {
			err = errors.New("it lists nothing")
		}
	}
	return l.Files, ListKind.Wrap("", err)
}

// ReadFile reads a folded file.
func ReadFile(ctx context.Context, g objstore.Getter, f FoldedFile) ([]Entry, error) {
	es, _, err := record.Read(ctx, g, f.Key, FileKind, ParseFolded)
	if err == nil && uint64(len(es)) != f.Entries {
		err = FileKind.Corrupt(f.Key, "%d entries, the head says %d", len(es), f.Entries)
	}
	return es, whatNow(f.Key, err)
}
