// Package sample is what the tests of mutants plant bugs in.
package sample

import "errors"

// ErrNone means that there is nothing to choose from.
var ErrNone = errors.New("nothing to choose from")

// Sum has a variadic parameter.
func Sum(of ...int) int {
	n := 0
	for _, v := range of {
		n += v
	}
	return n
}

// Largest has a type parameter, and a named result that is assigned.
func Largest[T int | float64](of []T, _ bool) (max T, err error) {
	if len(of) == 0 {
		return max, ErrNone
	}
	max = of[0]
	for _, v := range of {
		if v > max {
			max = v
		}
	}
	return
}

// Counter has a method without a result.
type Counter struct{ N int }

// Add counts.
func (c *Counter) Add(n int) {
	if n < 0 {
		return
	}
	c.N += n
}

// Kind has a receiver without a name.
func (Counter) Kind() string { return "counter" }
