package answer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"lightmetrics.dev/lightmetrics/internal/queries/promeval"
	"lightmetrics.dev/lightmetrics/internal/queries/promstore"
)

// request is what a session is asked: an expression, at one time or at steps.
type request struct {
	text       string
	expr       parser.Expr // of the text; not to be changed
	start, end time.Time
	step       time.Duration // 0 for one time
	o          Options
}

// times is at how many times the expression is evaluated.
func (q *request) times() int64 {
	if q.step == 0 {
		return 1
	}
	return int64(q.end.Sub(q.start)/q.step) + 1
}

// once evaluates with promeval what has one of its shapes, and everything else with the engine.
func (s *Session) once(ctx context.Context, q *request) (Result, error) {
	res, err := s.shaped(ctx, q)
	if !errors.Is(err, promeval.ErrOther) {
		return res, s.explained(err)
	}
	query, err := s.prepare(ctx, q)
	var limit *promstore.LimitError
	switch {
	// Not a mistake in the expression: preparing it read rolled blocks, which may meet a limit or the deadline.
	case errors.As(err, &limit), err != nil && ctx.Err() != nil:
		return Result{}, err
	case err != nil:
		return Result{}, &QueryError{err}
	}
	s.query, s.account.query = query, query
	answer := query.Exec(ctx)
	if answer.Err != nil {
		return Result{}, s.explained(answer.Err)
	}
	res = Result{Value: answer.Value, Warnings: answer.Warnings}
	if q.o.Stats {
		res.Stats = query.Stats()
	}
	return res, nil
}

// times that both evaluators count alike: those of which the engine takes the nanoseconds.
var firstTime, lastTime = time.Unix(0, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// shaped evaluates with promeval. It returns promeval.ErrOther where the engine must; then nothing was read.
func (s *Session) shaped(ctx context.Context, q *request) (Result, error) {
	// Statistics are those of the engine.
	if q.o.Stats || q.step%time.Millisecond != 0 || q.start.Before(firstTime) || q.end.After(lastTime) {
		return Result{}, promeval.ErrOther
	}
	shape, ok := promeval.Of(q.expr)
	if !ok {
		return Result{}, promeval.ErrOther
	}
	lookback := q.o.Lookback
	if lookback <= 0 {
		lookback = s.e.cfg.Lookback
	}
	v, remarks, err := shape.Evaluate(ctx, s.Queryable, promeval.Times{
		Start: q.start.UnixMilli(), End: q.end.UnixMilli(), Step: q.step.Milliseconds(), Lookback: lookback.Milliseconds(), MaxSamples: s.e.cfg.Limits.Samples,
	})
	if errors.Is(err, promeval.ErrOther) {
		// What was read counts against the limits only once.
		s.begin()
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Value: v, Warnings: remarks}, nil
}

// prepare makes a query of the engine.
func (s *Session) prepare(ctx context.Context, q *request) (promql.Query, error) {
	text, err := s.windowed(ctx, q)
	if err != nil {
		return nil, err
	}
	o := promql.NewPrometheusQueryOpts(q.o.PerStepStats, q.o.Lookback)
	if q.step == 0 {
		return s.e.engine.NewInstantQuery(ctx, s.Queryable, o, text, q.start)
	}
	return s.e.engine.NewRangeQuery(ctx, s.Queryable, o, text, q.start, q.end, q.step)
}

// explained names the limit that an error of an evaluation is about.
func (s *Session) explained(err error) error {
	var many promql.ErrTooManySamples
	var late promql.ErrQueryTimeout
	switch {
	case errors.As(err, &many), errors.Is(err, promeval.ErrTooMany):
		return &promstore.LimitError{Limit: "limits.samples", Max: int64(s.e.cfg.Limits.Samples)}
	case errors.Is(err, context.DeadlineExceeded): // from a guard; the engine has an error of its own
		return fmt.Errorf("%w (limits.timeout is %s)", promql.ErrQueryTimeout("the reading of samples"), s.e.cfg.Limits.Timeout)
	case errors.As(err, &late):
		return fmt.Errorf("%w (limits.timeout is %s)", err, s.e.cfg.Limits.Timeout)
	}
	return err
}
