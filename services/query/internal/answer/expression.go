package answer

import (
	"fmt"
	"regexp/syntax"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"
)

// Bounds of expressions, which the parser and the engine do not have. Parsing takes
// time by the square of the depth and can't be interrupted, both recurse, and a stack
// beyond 1 GiB ends the process. The engine takes memory for every step of a subquery before it runs it.
const (
	maxExprBytes     = 256 << 10
	maxOperators     = 2000 // each may add one to the depth
	maxBrackets      = 500  // open at once
	maxSubquerySteps = 1_000_000
	// maxSubqueryPoints bounds what a function over a subquery is given for one series, at all
	// times of evaluation together: the engine looks at its context once a series.
	maxSubqueryPoints = 200_000_000
	// maxRegexpSize bounds the regular expressions of an expression together, with what is
	// repeated written out: x{1000} is 1,000 long. To compile and to try them takes that long.
	maxRegexpSize = 100_000
)

// Parse parses an expression within bounds. Errors are *QueryError.
func (e *Evaluator) Parse(text string) (parser.Expr, error) {
	if err := shallow(text); err != nil {
		return nil, &QueryError{err}
	}
	expr, err := e.Parser.ParseExpr(text)
	if err != nil {
		return nil, &QueryError{err}
	}
	return expr, nil
}

// shallow bounds the depth of an expression by its tokens.
func shallow(text string) error {
	if len(text) > maxExprBytes {
		return fmt.Errorf("expression of %d bytes, at most %d", len(text), maxExprBytes)
	}
	operators, open, patterns := 0, 0, 0
	for l := parser.Lex(text); ; {
		var it parser.Item
		l.NextItem(&it)
		switch {
		case it.Typ == parser.EOF || it.Typ == parser.ERROR: // the parser knows what is wrong
			return nil
		case it.Typ.IsOperator():
			operators++
		case it.Typ == parser.LEFT_PAREN || it.Typ == parser.LEFT_BRACE || it.Typ == parser.LEFT_BRACKET:
			open++
		case it.Typ == parser.RIGHT_PAREN || it.Typ == parser.RIGHT_BRACE || it.Typ == parser.RIGHT_BRACKET:
			open--
		case it.Typ == parser.STRING: // of a matcher, or of label_replace
			if patterns += patternSize(it.Val); patterns > maxRegexpSize {
				return fmt.Errorf("regular expressions are longer than %d with their repetitions written out", maxRegexpSize)
			}
		}
		if operators > maxOperators || open > maxBrackets {
			return fmt.Errorf("expression has more than %d operators, or more than %d brackets in each other", maxOperators, maxBrackets)
		}
	}
}

// patternSize is the size of a quoted regular expression; of other text it is small or 0.
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
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxRegexpSize+1) // sums do not overflow
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

// check parses an expression and bounds what its evaluation over span, at so many times, takes.
func (e *Evaluator) check(text string, span time.Duration, times int64) error {
	expr, err := e.Parse(text)
	if err != nil {
		return err
	}
	if err := bounded(expr, max(span, 0), times); err != nil {
		return &QueryError{err}
	}
	return nil
}

// bounded walks an expression that is evaluated over span, at so many times. An inner
// subquery runs over the range of those around it.
func bounded(n parser.Node, span time.Duration, times int64) error {
	if q, ok := n.(*parser.SubqueryExpr); ok {
		step := q.Step
		if step <= 0 {
			step = defaultSubqueryStep
		}
		if span += q.Range; span < 0 || span/step > maxSubquerySteps {
			return fmt.Errorf("subquery [%s:%s] has more than %d steps", q.Range, step, maxSubquerySteps)
		}
		if points := int64(q.Range / step); points > maxSubqueryPoints/max(times, 1) {
			return fmt.Errorf("subquery [%s:%s] gives %d points at each of %d times, together more than %d", q.Range, step, points, times, maxSubqueryPoints)
		}
		times = int64(span/step) + 1
	}
	for c := range parser.ChildrenIter(n) {
		if err := bounded(c, span, times); err != nil {
			return err
		}
	}
	return nil
}
