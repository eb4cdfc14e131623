package promapi

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
)

// TestAnswersInPieces: whatever answers were before, and however long its elements are, an answer is what was appended to it,
// its memory is reserved until it is released, and what a first attempt wrote is void.
func TestAnswersInPieces(t *testing.T) {
	eval := answer.New(answer.Config{Limits: answer.Limits{Memory: 16 << 20, Concurrency: 1}}, answer.Deps{Registry: prometheus.NewRegistry()})
	defer eval.Close()
	a := &API{eval: eval}
	for _, sizes := range [][]int{{1}, {pieceBytes}, {pieceBytes - len(head)}, {1, pieceBytes - 1, 3 * pieceBytes, 5}, {100}, {pieceBytes, pieceBytes, pieceBytes}, {}} {
		o := a.body()
		var want strings.Builder
		for attempt := range 2 {
			o.restart()
			want.Reset()
			want.WriteString(head)
			for i, n := range sizes {
				text := strings.Repeat(string(rune('a'+i+10*attempt)), n)
				o.b = append(o.b, text...)
				want.WriteString(text)
				if err := o.grown(); err != nil {
					t.Fatal(err)
				}
			}
		}
		var got bytes.Buffer
		if n, err := o.WriteTo(&got); err != nil || n != int64(o.len()) || got.String() != want.String() {
			t.Errorf("%v: %d bytes of %d, %v", sizes, n, want.Len(), err)
		}
		if len(sizes) > 0 && o.held < int64(want.Len()) {
			t.Errorf("%v: %d bytes are reserved for %d", sizes, o.held, want.Len())
		}
		o.release()
	}
	// Everything was given back.
	if err := eval.Reserve().Grow(16 << 20); err != nil {
		t.Error(err)
	}
}

// heldWriter fails, and has kept what it was given: so does a stream of HTTP/2 whose client went away.
type heldWriter struct {
	after  int
	panics bool
	kept   [][]byte
}

func (w *heldWriter) Write(b []byte) (int, error) {
	w.kept = append(w.kept, b)
	switch {
	case len(w.kept) <= w.after:
		return len(b), nil
	case w.panics:
		panic("written")
	}
	return 0, errors.New("the client went away")
}

// TestPiecesOfAFailedWriteAreNotUsedAgain: what a failed write may still read is in no later answer.
func TestPiecesOfAFailedWriteAreNotUsedAgain(t *testing.T) {
	eval := answer.New(answer.Config{Limits: answer.Limits{Memory: 16 << 20, Concurrency: 1}}, answer.Deps{Registry: prometheus.NewRegistry()})
	defer eval.Close()
	a := &API{eval: eval}
	for _, w := range []*heldWriter{{}, {after: 1}, {after: 2}, {after: 1, panics: true}} {
		o := a.body()
		for range 3 {
			o.b = append(o.b, bytes.Repeat([]byte{'a'}, pieceBytes)...)
			if err := o.grown(); err != nil {
				t.Fatal(err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			defer o.release()
			if _, err := o.WriteTo(w); err == nil {
				t.Error("the write succeeded")
			}
		}()
		var later [][]byte
		for range 16 {
			b := newPiece()
			later = append(later, append(b, bytes.Repeat([]byte{'b'}, pieceBytes)...))
		}
		for i, b := range w.kept {
			if slices.Contains(b, 'b') {
				t.Errorf("after %d writes, panic %t: piece %d has bytes of another answer", w.after, w.panics, i)
			}
		}
		for _, b := range later {
			pieces.Put(&piece{b})
		}
	}
}
