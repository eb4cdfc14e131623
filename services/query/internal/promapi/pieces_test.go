package promapi

import (
	"bytes"
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
