package history

import (
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var (
	a, b = identity.Sum([]byte("a")), identity.Sum([]byte("b"))
	id   = identity.Batch{Agent: "agent", Boot: "boot", SeqStart: 1, SeqEnd: 9}
)

func TestRegisterTellsRightFromWrong(t *testing.T) {
	op := func(mine identity.Digest, from, to int64, o accept.Outcome, holder identity.Digest) porcupine.Operation {
		return Operation(0, mine, from, to, Reply{Outcome: o, Holder: holder})
	}
	unnamed := func(mine identity.Digest, from, to int64, o accept.Outcome) porcupine.Operation {
		return Operation(0, mine, from, to, Reply{Outcome: o, Unnamed: true})
	}
	lost := func(mine identity.Digest, from int64) porcupine.Operation {
		return Operation(0, mine, from, 0, Reply{})
	}
	for name, c := range map[string]struct {
		want bool
		ops  []porcupine.Operation
	}{
		"first then duplicate":        {true, []porcupine.Operation{op(a, 1, 2, accept.Accepted, a), op(a, 3, 4, accept.Duplicate, a)}},
		"accepted twice":              {false, []porcupine.Operation{op(a, 1, 2, accept.Accepted, a), op(a, 3, 4, accept.Accepted, a)}},
		"duplicate of nothing":        {false, []porcupine.Operation{op(a, 1, 2, accept.Duplicate, a)}},
		"duplicate of a lost answer":  {true, []porcupine.Operation{lost(a, 1), op(a, 3, 4, accept.Duplicate, a)}},
		"duplicate before its first":  {false, []porcupine.Operation{op(a, 1, 2, accept.Duplicate, a), op(a, 3, 4, accept.Accepted, a)}},
		"duplicate before a lost one": {false, []porcupine.Operation{op(a, 1, 2, accept.Duplicate, a), lost(a, 3)}},
		"two hashes":                  {false, []porcupine.Operation{op(a, 1, 2, accept.Accepted, a), op(b, 3, 4, accept.Accepted, b)}},
		"conflict":                    {true, []porcupine.Operation{op(a, 1, 5, accept.Conflict, b), op(b, 3, 4, accept.Accepted, b)}},
		"conflict with a stranger":    {false, []porcupine.Operation{op(a, 1, 2, accept.Accepted, a), op(b, 3, 4, accept.Conflict, b)}},
		"conflict with a lost write":  {true, []porcupine.Operation{lost(b, 1), op(a, 3, 4, accept.Conflict, b)}},
		"unnamed conflict":            {true, []porcupine.Operation{op(b, 1, 2, accept.Accepted, b), unnamed(a, 3, 4, accept.Conflict)}},
		"unnamed, with itself":        {false, []porcupine.Operation{op(a, 1, 2, accept.Accepted, a), unnamed(a, 3, 4, accept.Conflict)}},
	} {
		if got := Linearizable(Register, c.ops); got != c.want {
			t.Errorf("%s: linearizable is %v", name, got)
		}
		if c.want && !Linearizable(RegisterWithLosses, c.ops) {
			t.Errorf("%s: not linearizable where frames may be lost", name)
		}
	}
}

// Where a region may be lost for good, the same frame may be accepted again, and no other.
func TestRegisterWithLosses(t *testing.T) {
	half := a
	clear(half[len(half)/2:])
	op := func(mine identity.Digest, from, to int64, o accept.Outcome, holder identity.Digest) porcupine.Operation {
		return Operation(0, mine, from, to, Reply{Outcome: o, Holder: holder})
	}
	first := op(a, 1, 2, accept.Accepted, a)
	for name, c := range map[string]struct {
		want bool
		then porcupine.Operation
	}{
		"accepted again":              {true, op(a, 3, 4, accept.Accepted, a)},
		"accepted for another":        {false, op(b, 3, 4, accept.Accepted, b)},
		"conflict with half of it":    {true, op(b, 3, 4, accept.Conflict, half)},
		"conflict with no holder":     {false, op(b, 3, 4, accept.Conflict, identity.Digest{})},
		"duplicate of another":        {false, op(b, 3, 4, accept.Duplicate, b)},
		"conflict of the same frame":  {false, op(a, 3, 4, accept.Conflict, half)},
		"duplicate, with half of it":  {false, op(a, 3, 4, accept.Duplicate, half)},
		"duplicate of what was there": {true, op(a, 3, 4, accept.Duplicate, a)},
	} {
		if got := Linearizable(RegisterWithLosses, []porcupine.Operation{first, c.then}); got != c.want {
			t.Errorf("%s: linearizable is %v", name, got)
		}
	}
}

func TestLogKeepsWhatMatters(t *testing.T) {
	l := NewLog(100)
	for range 1000 { // a store that is down for a while
		l.Call(1, id, a).End(Reply{})
	}
	l.Call(1, id, a).End(Reply{Outcome: accept.Duplicate, Holder: a})
	l.Call(2, id, b).End(Reply{Outcome: accept.Conflict, Holder: a})
	s, err := l.Check()
	if err != nil || s != (Stats{Identities: 1, Answers: 2, Open: 1, Unseen: 1}) {
		t.Errorf("%+v, %v", s, err)
	}
	l.Call(2, id, b).End(Reply{Outcome: accept.Accepted, Holder: b})
	if _, err := l.Check(); err == nil || !strings.Contains(err.Error(), "client 2 sends") {
		t.Errorf("two hashes were accepted: %v", err)
	}
}

func TestLogKeepsTheFirstLostCall(t *testing.T) {
	l := NewLog(100)
	first := l.Call(1, id, a)
	l.Call(2, id, a).End(Reply{Outcome: accept.Duplicate, Holder: a}) // of the first, on its way still
	l.Call(3, id, a).End(Reply{})
	first.End(Reply{})
	if s, err := l.Check(); err != nil || s.Open != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestLogIsBounded(t *testing.T) {
	l := NewLog(2)
	for i := range uint64(5) {
		l.Call(1, identity.Batch{Agent: "x", Boot: "b", SeqStart: i + 1, SeqEnd: i + 1}, a).End(Reply{Outcome: accept.Accepted, Holder: a})
	}
	if s, err := l.Check(); err != nil || s.Identities != 2 || s.Dropped != 3 {
		t.Errorf("%+v, %v", s, err)
	}
}
