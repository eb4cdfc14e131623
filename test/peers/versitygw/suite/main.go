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
	name := flag.String("run", "", "only the tests whose names match, those of other flows too; Versioning: the flow of that name")
	flag.Parse()
	options := []integration.Option{integration.WithAccess(*access), integration.WithSecret(*secret),
		integration.WithRegion("us-east-1"), integration.WithEndpoint(*endpoint)}
	// Buckets with object lock have versions, as on AWS: only with this option do the tests remove all of them.
	versioned := integration.NewS3Conf(append(options, integration.WithVersioningEnabled())...)
	switch {
	case *name == "":
		flow(versioned, integration.TestFullFlow)
		flow(integration.NewS3Conf(options...), unversioned)
	case *name == "Versioning":
		flow(versioned, integration.TestVersioning)
	default:
		if err := some(versioned, *name); err != nil {
			log.Fatal(err)
		}
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

// unversioned are the tests that the full flow leaves out for a store with versions, and that are of buckets without.
func unversioned(ts *integration.TestState) {
	integration.TestListObjectVersions_VD(ts)
	ts.Run(integration.PutObject_racey_success)
	ts.Run(integration.PublicBucket_public_object_policy)
	ts.Run(integration.PutObjectLockConfiguration_not_enabled_on_bucket_creation)
}

// flow runs tests. One that trusts an answer too much panics, which would end all that come after it: the flow is begun
// again behind such a test.
func flow(conf *integration.S3Conf, tests func(*integration.TestState)) {
	for after := 0; ; {
		ctx := &cursor{Context: context.Background(), skip: after}
		ts := integration.NewTestState(ctx, conf, false)
		whole := guard(func() { tests(ts) })
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
