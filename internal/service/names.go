package service

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// sections are the names that may stand at the top of a settings file, which services may share.
var sections struct {
	sync.Mutex
	names []string
}

// Sections registers names of sections. Each command registers its own. A binary with one service
// also registers those of the others, so that it accepts a file which it shares with them.
func Sections(names ...string) {
	sections.Lock()
	defer sections.Unlock()
	for _, n := range names {
		if !slices.Contains(sections.names, n) {
			sections.names = append(sections.names, n)
		}
	}
	// Sorted, since messages list the names and must not depend on the order of registration.
	slices.Sort(sections.names)
}

func knownSections() []string {
	Sections("telemetry")
	sections.Lock()
	defer sections.Unlock()
	return slices.Clone(sections.names)
}

// otherVariables are variables that other things than settings read: failpoints, and the
// tests, whose environment the processes under test inherit.
var otherVariables = []string{failpoint.Env, "LIGHTMETRICS_SOAK", "LIGHTMETRICS_SEED", "LIGHTMETRICS_SCHEDULES", "LIGHTMETRICS_MUTANT",
	"LIGHTMETRICS_TEST_", "LIGHTMETRICS_BENCH_"}

// Environ gives the variables that may be settings. It writes to w which other ones are treated as
// Kubernetes service links.
func Environ(w io.Writer) []string {
	environ, links := config.SplitServiceLinks(config.Environ())
	if len(links) > 0 {
		fmt.Fprintf(w, "these variables are taken for Kubernetes service links, not for settings: %s\n", strings.Join(links, ", "))
	}
	return environ
}

// CheckNames refuses what would be a mistake in the settings of any service: sections of
// the file ("" is none), and variables, that none of them knows.
func CheckNames(file string, environ []string) error {
	known := knownSections()
	return errors.Join(config.CheckSections(file, known...), config.CheckEnvironment(environ, known, otherVariables))
}
