package answer

import (
	"fmt"
	"regexp/syntax"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"
)

// Bounds of expressions, which parser and engine do not have. The time of parsing grows with the square of the
// depth and can't be interrupted; both recurse, and a stack beyond 1 GiB ends the process. For a subquery the
// engine allocates memory for every step before it runs.
const (
	maxExprBytes     = 256 << 10
	maxOperators     = 2000 // each may add one level
	maxBrackets      = 500  // nested
	maxSubquerySteps = 1_000_000
	// maxSubqueryPoints bounds the points that a function over a subquery gets for one series, at all times of
	// evaluation together: the engine checks its context once for each series.
	maxSubqueryPoints = 200_000_000
	// maxRegexpSize bounds the regular expressions of an expression together, with repetitions written out:
	// x{1000} counts as 1,000. Compiling and matching them takes time in proportion.
	maxRegexpSize = 100_000
)

// parsedBytes bounds the texts of expressions that are kept with what they were parsed to, which takes some times as much.
const parsedBytes = 256 << 10

// Parse parses an expression within bounds. The result may be that of an earlier call, as dashboards ask the same again and
// again: it must not be changed. Errors are *QueryError.
func (e *Evaluator) Parse(text string) (parser.Expr, error) {
	if expr, ok := e.parsed.Get(text); ok {
		return expr, nil
	}
	expr, err := e.parse(text)
	if err == nil {
		e.parsed.Put(text, expr, int64(len(text))+256)
	}
	return expr, err
}

func (e *Evaluator) parse(text string) (parser.Expr, error) {
	if err := shallow(text); err != nil {
		return nil, &QueryError{err}
	}
	expr, err := e.Parser.ParseExpr(text)
	if err != nil {
		return nil, &QueryError{err}
	}
	return expr, nil
}

// shallow bounds the depth of an expression by counting tokens, before it is parsed.
func shallow(text string) error {
	if len(text) > maxExprBytes {
		return fmt.Errorf("expression of %d bytes, at most %d", len(text), maxExprBytes)
	}
	operators, open, patterns := 0, 0, 0
	for l := parser.Lex(text); ; {
		var it parser.Item
		l.NextItem(&it)
		switch {
		case it.Typ == parser.EOF || it.Typ == parser.ERROR: // the parser reports what is wrong
			return nil
		case it.Typ.IsOperator():
			operators++
		case it.Typ == parser.LEFT_PAREN || it.Typ == parser.LEFT_BRACE || it.Typ == parser.LEFT_BRACKET:
			open++
		case it.Typ == parser.RIGHT_PAREN || it.Typ == parser.RIGHT_BRACE || it.Typ == parser.RIGHT_BRACKET:
			open--
		case it.Typ == parser.STRING: // of a matcher, or an argument of label_replace
			if patterns += patternSize(it.Val); patterns > maxRegexpSize {
				return fmt.Errorf("regular expressions are longer than %d with their repetitions written out", maxRegexpSize)
			}
		}
		if operators > maxOperators || open > maxBrackets {
			return fmt.Errorf("expression has more than %d operators, or more than %d brackets in each other", maxOperators, maxBrackets)
		}
	}
}

// patternSize is the size of a quoted regular expression; for other text it is small or 0.
func patternSize(quoted string) int {
	text, err := strutil.Unquote(quoted)
	if err != nil {
		return 0
	}
	re, err := syntax.Parse(text, syntax.Perl|syntax.DotNL)
	if err != nil {
		return 0
	}
	return regexpSize(re)
}

func regexpSize(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, s := range re.Sub {
		n += regexpSize(s)
	}
	// Compiling writes repetitions out, so a short text can stand for a huge program.
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxRegexpSize+1) // so that sums can't overflow
}

// ParseSelectors parses series selectors within bounds. Errors are *QueryError.
func (e *Evaluator) ParseSelectors(texts []string) ([][]*labels.Matcher, error) {
	for _, text := range texts {
		if err := shallow(text); err != nil {
			return nil, &QueryError{err}
		}
	}
	list, err := e.Parser.ParseMetricSelectors(texts)
	if err != nil {
		return nil, &QueryError{err}
	}
	return list, nil
}

// check parses an expression and bounds the cost of evaluating it over span, at the given number of times.
func (e *Evaluator) check(text string, span time.Duration, times int64) (parser.Expr, error) {
	expr, err := e.Parse(text)
	if err != nil {
		return nil, err
	}
	if err := bounded(expr, max(span, 0), times); err != nil {
		return nil, &QueryError{err}
	}
	return expr, nil
}

// bounded walks an expression that is evaluated over span, at the given number of times. A subquery inside of
// another runs over the ranges of all around it.
func bounded(n parser.Node, span time.Duration, times int64) error {
	if q, ok := n.(*parser.SubqueryExpr); ok {
		step := q.Step
		if step <= 0 {
			step = defaultSubqueryStep
		}
		// A sum of ranges can overflow, which shows as a negative span.
		if span += q.Range; span < 0 || span/step > maxSubquerySteps {
			return fmt.Errorf("subquery [%s:%s] has more than %d steps", q.Range, step, maxSubquerySteps)
		}
		if points := int64(q.Range / step); points > maxSubqueryPoints/max(times, 1) {
			return fmt.Errorf("subquery [%s:%s] gives %d points at each of %d times, together more than %d", q.Range, step, points, times, maxSubqueryPoints)
		}
		// Whatever is inside of the subquery is evaluated at each of its steps.
		times = int64(span/step) + 1
	}
	for c := range parser.ChildrenIter(n) {
		if err := bounded(c, span, times); err != nil {
			return err
		}
	}
	return nil
}
