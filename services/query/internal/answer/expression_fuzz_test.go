package answer

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"lightmetrics.dev/lightmetrics/internal/platform/lru"
)

// FuzzExpression: an expression is bounded or refused, and never panics.
func FuzzExpression(f *testing.F) {
	for _, s := range []string{`up`, `sum(rate(a{b=~"c|d"}[5m])) by (e)`, `max_over_time(a[1y:1ms])`, `((((1))))`, `-+-1`, `a[1s:1ms][1y:1d]`,
		`{__name__="x"} @ end() offset -5m`, `"\xff"`, "up\x00", `a{b="`, `1e999`} {
		f.Add(s)
	}
	e := &Evaluator{Parser: parser.NewParser(parser.Options{}), parsed: lru.New[string, parser.Expr](parsedBytes)}
	f.Fuzz(func(t *testing.T, s string) {
		_, err := e.check(s, time.Hour, 100)
		var q *QueryError
		if err != nil && !errors.As(err, &q) {
			t.Fatalf("%v", err)
		}
	})
}
