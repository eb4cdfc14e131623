package answer

import (
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Bounds of expressions, which the parser and the engine do not have. Parsing takes
// time by the square of the depth and can't be interrupted, both recurse, and a stack
// beyond 1 GiB ends the process. The engine takes memory for every step of a subquery before it runs it.
const (
	maxExprBytes     = 256 << 10
	maxOperators     = 2000 // each may add one to the depth
	maxBrackets      = 500  // open at once
	maxSubquerySteps = 1_000_000
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
	operators, open := 0, 0
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
		}
		if operators > maxOperators || open > maxBrackets {
			return fmt.Errorf("expression has more than %d operators, or more than %d brackets in each other", maxOperators, maxBrackets)
		}
	}
}

// check parses an expression and bounds what its evaluation over span takes.
func (e *Evaluator) check(text string, span time.Duration) error {
	expr, err := e.Parse(text)
	if err != nil {
		return err
	}
	if err := bounded(expr, max(span, 0)); err != nil {
		return &QueryError{err}
	}
	return nil
}

// bounded walks an expression that is evaluated over span. An inner subquery runs over
// the range of those around it.
func bounded(n parser.Node, span time.Duration) error {
	if q, ok := n.(*parser.SubqueryExpr); ok {
		step := q.Step
		if step <= 0 {
			step = defaultSubqueryStep
		}
		if span += q.Range; span < 0 || span/step > maxSubquerySteps {
			return fmt.Errorf("subquery [%s:%s] has more than %d steps", q.Range, step, maxSubquerySteps)
		}
	}
	for c := range parser.ChildrenIter(n) {
		if err := bounded(c, span); err != nil {
			return err
		}
	}
	return nil
}
