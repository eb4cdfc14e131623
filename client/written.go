package client

import (
	"slices"
	"strconv"
	"strings"
)

// written are the positions of accepted batches: of each run of the journal the last one, which stands for those
// before it.
type written struct {
	last []position // those used last come last
	many bool       // some did not fit
}

// position is one of the journal: a segment of a run.
type position struct {
	run     string
	segment uint64
}

// maxTokens is how many tokens a query may have.
const maxTokens = 100

// add notes the position in an answer.
func (w *written) add(text string) {
	run, segment, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(segment, 10, 64)
	if err != nil {
		return // the collector has the batch on its own disk, and gives none
	}
	at := position{run, n}
	// A sender has one collector at a time, so the run is nearly always the last one.
	if i := slices.IndexFunc(w.last, func(p position) bool { return p.run == run }); i >= 0 {
		// Answers may come in another order than segments.
		at.segment = max(at.segment, w.last[i].segment)
		w.last = slices.Delete(w.last, i, i+1)
	}
	if w.last = append(w.last, at); len(w.last) > maxTokens {
		w.last, w.many = slices.Delete(w.last, 0, 1), true
	}
}

func (w *written) get() Written {
	if w.many {
		// More runs than a query may name, over weeks: everything is what remains to be asked for.
		return Written{Everything: true}
	}
	var out Written
	for _, p := range w.last {
		out.Tokens = append(out.Tokens, Token(p.run+":"+strconv.FormatUint(p.segment, 10)))
	}
	return out
}
