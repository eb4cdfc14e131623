package redundancy

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
)

// silent are places of which one keeps its callers until it is told to answer.
type silent struct {
	Files
	entered chan struct{}
	answer  chan error
}

func (s *silent) Stat(_ context.Context, f File) error {
	if f.Place != "silent" {
		return nil
	}
	s.entered <- struct{}{}
	return <-s.answer
}

func (s *silent) Make(_ context.Context, _ string, _ int64, _ Policy, want []File) []error {
	errs := make([]error, len(want))
	for i, f := range want {
		if f.Place == "silent" {
			errs[i] = ErrAway
		}
	}
	return errs
}

// TestProbation: a place that has failed keeps one caller at most, until it has answered; others are told so at once, and other places
// are free.
func TestProbation(t *testing.T) {
	s := &silent{entered: make(chan struct{}, 10), answer: make(chan error)}
	p := newProbation(s)
	file := func(place string) File { return File{Key: ledger.Key{Body: anID(1)}, Place: place} }
	results := make(chan error, 10)
	ask := func() { go func() { results <- p.Stat(t.Context(), file("silent")) }() }

	ask()
	ask()
	<-s.entered
	<-s.entered // both wait: nobody knew
	s.answer <- ErrAway
	s.answer <- ErrAway
	<-results
	<-results
	ask()
	<-s.entered
	for range 5 {
		if err := p.Stat(t.Context(), file("silent")); !errors.Is(err, ErrOnProbation) {
			t.Fatalf("a second caller: %v", err)
		}
	}
	errs := p.Make(t.Context(), anID(1), 1, twoOne, []File{file("a"), file("silent"), file("b")})
	if errs[0] != nil || !errors.Is(errs[1], ErrOnProbation) || errs[2] != nil {
		t.Errorf("%v", errs)
	}
	if err := p.Stat(t.Context(), file("a")); err != nil {
		t.Error(err)
	}
	s.answer <- nil // it has answered
	if err := <-results; err != nil {
		t.Error(err)
	}
	ask()
	ask()
	<-s.entered
	<-s.entered
	s.answer <- nil
	s.answer <- nil
	for range 2 { // what they have learned comes before what is learned next
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if errs := p.Make(t.Context(), anID(1), 1, twoOne, []File{file("silent")}); !errors.Is(errs[0], ErrAway) {
		t.Error(errs)
	}
	if !p.failed["silent"] || len(p.trying) != 0 {
		t.Errorf("%v %v", p.failed, p.trying)
	}
}
