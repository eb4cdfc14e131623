// Package failpoint gives names to the moments at which a crash, a pause or an error
// is worth a test. A point that is not armed costs one atomic load. Points are armed
// only at the start of a process, by LIGHTMETRICS_FAILPOINTS; docs/protocol/failpoints.md lists them.
package failpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Env is the variable that arms points: "name=action[@n]", separated by commas.
const Env = "LIGHTMETRICS_FAILPOINTS"

// ErrInjected is what Err gives where the action is "error".
var ErrInjected = errors.New("injected failure")

// Point is a named moment.
type Point struct {
	// Name is "<process>.<part>.<moment>", of lower-case letters, digits, dots, dashes and underscores.
	Name string
	// When says in a few words what is done already and what is not.
	When string
	// Test is the package whose crash test drives the point. Empty is test/robustness,
	// which reaches it in a process of an ordinary deployment under load; a mode, a damage
	// or a size that such a deployment does not see is left to the package itself.
	Test string
}

// Driven gives points to the crash test of a package.
func Driven(by string, points ...Point) []Point {
	for i := range points {
		points[i].Test = by
	}
	return points
}

var (
	mu    sync.Mutex
	known = map[string]Point{}
	armed atomic.Pointer[table]
)

// Register makes points known; a package does so once, as it is initialised. A
// malformed name, or one that is taken, panics. The result lets it stand in a var.
func Register(points ...Point) []Point {
	mu.Lock()
	defer mu.Unlock()
	for _, p := range points {
		if !valid(p.Name) || p.When == "" {
			panic(fmt.Sprintf("failpoint: malformed %+v", p))
		}
		if _, taken := known[p.Name]; taken {
			panic("failpoint: registered twice: " + p.Name)
		}
		known[p.Name] = p
	}
	return points
}

func valid(name string) bool {
	return strings.Count(name, ".") >= 2 && !strings.HasSuffix(name, ".") &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_") == ""
}

// Points lists the known points by name.
func Points() []Point {
	mu.Lock()
	defer mu.Unlock()
	list := make([]Point, 0, len(known))
	for _, p := range known {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Point) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Armed reports whether any point is armed.
func Armed() bool { return armed.Load() != nil }

// Hit is a point where the process may die, sleep or stop. The action "error" does nothing here.
func Hit(name string) {
	if t := armed.Load(); t != nil {
		_ = t.hit(name)
	}
}

// Err is a point where the action "error" gives an error that wraps ErrInjected; the others act as in Hit.
func Err(name string) error {
	if t := armed.Load(); t != nil {
		return t.hit(name)
	}
	return nil
}
