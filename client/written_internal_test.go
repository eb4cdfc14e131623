package client

import (
	"fmt"
	"strings"
	"testing"
)

// Of each run the last position is kept, in whatever order answers come; of more runs than a query may name, everything
// is asked for.
func TestWrittenPositions(t *testing.T) {
	run := func(i int) string { return fmt.Sprintf("%032x", i) }
	var w written
	for _, p := range []string{run(1) + ":4", run(2) + ":0", "", run(1) + ":9", run(1) + ":7", "nonsense"} {
		w.add(p)
	}
	if got := fmt.Sprint(w.get()); got != "{["+run(2)+":0 "+run(1)+":9] false}" {
		t.Error(got)
	}
	for i := range maxTokens - 2 {
		w.add(run(100+i) + ":0")
	}
	if got := w.get(); len(got.Tokens) != maxTokens || got.Everything || !strings.HasPrefix(string(got.Tokens[0]), run(2)) {
		t.Errorf("%+v", got)
	}
	w.add(run(1000) + ":0")
	if got := w.get(); len(got.Tokens) != 0 || !got.Everything {
		t.Errorf("%+v", got)
	}
}
