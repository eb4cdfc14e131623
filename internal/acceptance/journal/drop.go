package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// Errors of Drop.
var (
	// ErrNotNamed: neither the head nor a list of it names the file, so no follower asks for it.
	ErrNotNamed = errors.New("the head of the journal does not name it")
	// ErrFileReadable: the file is there and can be read, so nobody has to do without it.
	ErrFileReadable = errors.New("it can be read")
)

// Dropped is what Drop took out of the head.
type Dropped struct {
	// Head is the number of the move that did it.
	Head uint64
	// Spans of the files, or lists of files, as the head or a list had them.
	Spans []Span
}

// Drop makes a move of the head that names the files, or the lists of files, no more, so that followers that have not read
// them go on. It is for files that are lost for good, and refuses those that can be read. Their entries then stand nowhere
// in the journal, which the head says (Head.Lost): nobody calls the journal complete until a full audit that began later
// has entered them.
//
// The move is one conditional write, so a folder, or another operator, that moves the head meanwhile makes it fail with
// objstore.ErrPreconditionFailed, and after any error, or a death at any moment, the call is simply repeated. Lists that
// were written for a move that never came are swept as those of folders are. rand is the source of ids in keys.
func Drop(ctx context.Context, s Store, rand io.Reader, keys []string) (Dropped, error) {
	d, err := drop(ctx, s, rand, keys)
	if err != nil {
		return Dropped{}, fmt.Errorf("drop files of the journal: %w", err)
	}
	return d, nil
}

func drop(ctx context.Context, s Store, rand io.Reader, keys []string) (Dropped, error) {
	head, etag, err := ReadHead(ctx, s)
	if err != nil {
		return Dropped{}, err
	}
	begin, err := ReadBegin(ctx, s)
	if err != nil {
		return Dropped{}, err
	}
	next := head
	// Behind any audit that has said that the journal is complete, also where this journal is an older copy, or began again
	// after another one was deleted, so that its numbers are lower than that audit's.
	next.Number = max(head.Number, begin.Head) + 1
	next.Lost = next.Number
	w := fileWriter{store: s, number: next.Number}
	out := Dropped{Head: next.Number}
	wanted := func(x Span) bool { return slices.Contains(keys, x.Key) }
	next.Files = without(head.Files, &out, func(f FoldedFile) bool { return wanted(f.Span) })
	next.Lists = without(head.Lists, &out, func(l FileList) bool { return wanted(l.Span) })
	// What is left to be found stands in lists. They are not read for nothing: one of them may be unreadable, too.
	for i := 0; i < len(next.Lists) && len(out.Spans) < len(keys); i++ {
		files, err := readList(ctx, s, next.Lists[i])
		if err != nil {
			return Dropped{}, err
		}
		kept := without(files, &out, func(f FoldedFile) bool { return wanted(f.Span) })
		switch {
		case len(kept) == len(files):
			continue
		case len(kept) == 0:
			next.Lists = slices.Delete(slices.Clone(next.Lists), i, i+1)
			i--
			continue
		}
		if w.id, err = NewRunID(rand); err != nil {
			return Dropped{}, err
		}
		next.Lists = slices.Clone(next.Lists)
		if next.Lists[i], err = w.writeList(ctx, kept); err != nil {
			return Dropped{}, err
		}
	}
	if err := checkAll(ctx, s, keys, out.Spans); err != nil {
		return Dropped{}, err
	}
	_, err = moveHead(ctx, s, etag, next)
	return out, err
}

// FindLost returns the spans of files, or lists of files, that Drop would take out of the head now, or the error that it
// would return. It changes nothing.
func FindLost(ctx context.Context, g objstore.Getter, keys []string) ([]Span, error) {
	head, _, err := ReadHead(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("find lost files of the journal: %w", err)
	}
	var out Dropped
	wanted := func(x Span) bool { return slices.Contains(keys, x.Key) }
	without(head.Files, &out, func(f FoldedFile) bool { return wanted(f.Span) })
	lists := without(head.Lists, &out, func(l FileList) bool { return wanted(l.Span) })
	for i := 0; i < len(lists) && len(out.Spans) < len(keys); i++ {
		files, err := readList(ctx, g, lists[i])
		if err != nil {
			return nil, fmt.Errorf("find lost files of the journal: %w", err)
		}
		without(files, &out, func(f FoldedFile) bool { return wanted(f.Span) })
	}
	if err := checkAll(ctx, g, keys, out.Spans); err != nil {
		return nil, fmt.Errorf("find lost files of the journal: %w", err)
	}
	return out.Spans, nil
}

// checkAll is nil where each key was found, and what it names is lost.
func checkAll(ctx context.Context, g objstore.Getter, keys []string, found []Span) error {
	for _, key := range keys {
		if !slices.ContainsFunc(found, func(x Span) bool { return x.Key == key }) {
			return fmt.Errorf("%q: %w", key, ErrNotNamed)
		}
	}
	for _, x := range found {
		if err := checkLost(ctx, g, x); err != nil {
			return err
		}
	}
	return nil
}

// without are the spans but for those to drop, which out gets.
func without[T FoldedFile | FileList](of []T, out *Dropped, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(of), func(x T) bool {
		if !drop(x) {
			return false
		}
		switch x := any(x).(type) {
		case FoldedFile:
			out.Spans = append(out.Spans, x.Span)
		case FileList:
			out.Spans = append(out.Spans, x.Span)
		}
		return true
	})
}

// checkLost is nil where the file, or the list, is missing, or is there and will never be readable. A store that does not
// answer says neither, and a file of a newer release is read by that.
func checkLost(ctx context.Context, g objstore.Getter, x Span) error {
	var err error
	if _, _, perr := layout.ParseJournalList(x.Key); perr == nil {
		_, _, err = record.Read(ctx, g, x.Key, ListKind, ParseList)
	} else {
		_, err = ReadFile(ctx, g, FoldedFile{x})
	}
	switch {
	case err == nil:
		return fmt.Errorf("%q: %w", x.Key, ErrFileReadable)
	case errors.Is(err, objstore.ErrNotFound), record.Unreadable(err):
		return nil
	}
	return err
}

// whatNow adds to the error of a file that the head names what an operator can do where it stays so. A file that is gone
// may have been merged into another one meanwhile.
func whatNow(key string, err error) error {
	if errors.Is(err, objstore.ErrNotFound) || record.Unreadable(err) {
		return fmt.Errorf("%w (the head of the journal names it; where its bytes are lost for good: lmctl journal drop URL %s)", err, key)
	}
	return err
}
