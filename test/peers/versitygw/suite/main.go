// Command suite runs versitygw's integration tests of the S3 API against an endpoint.
//
//	suite -endpoint URL -access KEY -secret SECRET [-run NAME]
//
// Its output is what the tests print. It ends with 0 whatever their results are: who reads the output decides.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"regexp"
	"slices"

	"github.com/versity/versitygw/tests/integration"
)

func main() {
	endpoint := flag.String("endpoint", "", "URL of the store")
	access := flag.String("access", "", "access key id")
	secret := flag.String("secret", "", "secret access key")
	name := flag.String("run", "", "only the tests whose names match, those of other flows too")
	flag.Parse()
	conf := integration.NewS3Conf(integration.WithAccess(*access), integration.WithSecret(*secret),
		integration.WithRegion("us-east-1"), integration.WithEndpoint(*endpoint))
	if *name == "" {
		fullFlow(conf)
	} else if err := some(conf, *name); err != nil {
		log.Fatal(err)
	}
	fmt.Println("RAN:", integration.RunCount.Load(), "PASS:", integration.PassCount.Load(),
		"FAIL:", integration.FailCount.Load(), "SKIP:", integration.SkipCount.Load())
}

// some runs the tests whose names match.
func some(conf *integration.S3Conf, pattern string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	tests := integration.GetIntTests()
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		if re.MatchString(name) {
			guard(func() { tests[name](conf) })
		}
	}
	return nil
}

// fullFlow runs the whole suite. A test that trusts an answer too much panics, which would end all that come after it:
// the flow is begun again behind such a test.
func fullFlow(conf *integration.S3Conf) {
	for after := 0; ; {
		ctx := &cursor{Context: context.Background(), skip: after}
		ts := integration.NewTestState(ctx, conf, false)
		whole := guard(func() { integration.TestFullFlow(ts) })
		after = ctx.asked
		guard(ts.Wait) // runs those that must be alone, of the part of the flow that was run
		if whole {
			return
		}
	}
}

// guard reports whether f came to its end without a panic, and counts a panic as a failure.
func guard(f func()) (whole bool) {
	defer func() {
		if r := recover(); r != nil {
			integration.FailCount.Add(1)
			fmt.Printf("FAIL the test above: panic: %v\n", r)
		}
	}()
	f()
	return true
}

// cursor is a context that seems to have ended for the first skip tests. The suite asks it once before each test, and
// leaves out the test when it has ended.
type cursor struct {
	context.Context
	skip, asked int
}

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done implements context.Context.
func (c *cursor) Done() <-chan struct{} {
	c.asked++
	if c.asked <= c.skip {
		return ended
	}
	return nil
}
