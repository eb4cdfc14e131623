package answer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"lightmetrics.dev/lightmetrics/internal/platform/lru"
)

func TestExpressionBounds(t *testing.T) {
	e := &Evaluator{Parser: parser.NewParser(parser.Options{}), parsed: lru.New[string, parser.Expr](parsedBytes)}
	day := 24 * time.Hour
	for _, c := range []struct {
		name, expr string
		span       time.Duration
		ok         bool
		times      int64
	}{
		{"plain", `sum(rate(a[5m])) by (b) / 2`, day, true, 1},
		{"subquery", `max_over_time(rate(a[5m])[1d:15s])`, day, true, 1},
		{"subquery without a step", `max_over_time(a[1y:])`, 0, true, 1},
		{"many steps", `max_over_time(vector(1)[10y:1ms])`, 0, false, 1},
		{"many steps by the range of the query", `max_over_time(a[1s:1ms])`, 30 * day, false, 1},
		{"many steps by nesting", `max_over_time(max_over_time(a[1s:1ms])[1y:1d])`, 0, false, 1},
		{"a range that overflows", `max_over_time(max_over_time(a[290y:1y])[290y:1y])`, 0, false, 1},
		{"1,900 terms", "1" + strings.Repeat("+1", 1900), 0, true, 1},
		{"400 parentheses", strings.Repeat("(", 400) + "1" + strings.Repeat(")", 400), 0, true, 1},
		{"many pairs", "sum(a) or " + strings.Repeat("(a) or ", 1000) + "a", 0, true, 1},
		{"100,000 terms", "1" + strings.Repeat("+1", 100_000), 0, false, 1},
		{"parentheses", strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000), 0, false, 1},
		{"signs", strings.Repeat("-", 200_000) + "1", 0, false, 1},
		{"a subquery at few times", `quantile_over_time(.9, vector(1)[1d:1s])`, 0, true, 1000},
		{"a subquery at many times", `quantile_over_time(.9, vector(1)[1d:1s])`, 0, false, 11_000},
		{"many points by nesting", `max_over_time(quantile_over_time(.9, vector(1)[1d:1s])[11d:1m])`, 0, false, 1},
		{"a long list", `a{b=~"` + strings.Repeat("host-1234|", 5000) + `x"}`, 0, true, 1},
		{"repetitions", `a{b=~"((x{10}y){10}z){5}"}`, 0, true, 1},
		{"many repetitions", `a{b=~"` + strings.Repeat("x{1000}", 200) + `"}`, 0, false, 1},
		{"repetitions of several", strings.Repeat(`a{b=~"x{1000}y{1000}"} or `, 100) + "a", 0, false, 1},
		{"repetitions of label_replace", `label_replace(a, "b", "$1", "c", "` + strings.Repeat("x{1000}", 200) + `")`, 0, false, 1},
		{"long", strings.Repeat(" ", maxExprBytes) + "1", 0, false, 1},
	} {
		_, err := e.check(c.expr, c.span, max(c.times, 1))
		var q *QueryError
		if c.ok && err != nil || !c.ok && !errors.As(err, &q) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
