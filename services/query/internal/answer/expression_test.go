package answer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

func TestExpressionBounds(t *testing.T) {
	e := &Evaluator{Parser: parser.NewParser(parser.Options{})}
	day := 24 * time.Hour
	for _, c := range []struct {
		name, expr string
		span       time.Duration
		ok         bool
	}{
		{"plain", `sum(rate(a[5m])) by (b) / 2`, day, true},
		{"subquery", `max_over_time(rate(a[5m])[1d:15s])`, day, true},
		{"subquery without a step", `max_over_time(a[1y:])`, 0, true},
		{"many steps", `max_over_time(vector(1)[10y:1ms])`, 0, false},
		{"many steps by the range of the query", `max_over_time(a[1s:1ms])`, 30 * day, false},
		{"many steps by nesting", `max_over_time(max_over_time(a[1s:1ms])[1y:1d])`, 0, false},
		{"a range that overflows", `max_over_time(max_over_time(a[290y:1y])[290y:1y])`, 0, false},
		{"1,900 terms", "1" + strings.Repeat("+1", 1900), 0, true},
		{"400 parentheses", strings.Repeat("(", 400) + "1" + strings.Repeat(")", 400), 0, true},
		{"many pairs", "sum(a) or " + strings.Repeat("(a) or ", 1000) + "a", 0, true},
		{"100,000 terms", "1" + strings.Repeat("+1", 100_000), 0, false},
		{"parentheses", strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000), 0, false},
		{"signs", strings.Repeat("-", 200_000) + "1", 0, false},
		{"long", strings.Repeat(" ", maxExprBytes) + "1", 0, false},
	} {
		err := e.check(c.expr, c.span)
		var q *QueryError
		if c.ok && err != nil || !c.ok && !errors.As(err, &q) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
