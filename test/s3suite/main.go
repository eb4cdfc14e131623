// Command s3suite runs another project's tests of the S3 API, versitygw's integration suite, against the embedded object
// store, and prints how many pass and which do not.
//
//	go run ./test/s3suite [-run PATTERN] [-v]
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// access is the user's name too: the suite takes the owner's id for its access key.
const access, secret = "SUITEKEY", "secret-of-the-suite"

func main() {
	if filepath.Base(os.Args[0]) == adminName {
		os.Exit(admin(os.Args[1:]))
	}
	run := flag.String("run", "", "only tests whose names match, of other flows too")
	verbose := flag.Bool("v", false, "print all that the suite prints")
	flag.Parse()
	if err := suite(*run, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "s3suite:", err)
		os.Exit(1)
	}
}

func suite(run string, verbose bool) error {
	dir, err := os.MkdirTemp("", "s3suite")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var out bytes.Buffer
	users, err := serveUsers(filepath.Join(dir, "users.yaml"))
	if err != nil {
		return err
	}
	defer users.stop()
	err = withStore(dir, users.file, func(url string) error {
		var w io.Writer = &out
		if verbose {
			w = io.MultiWriter(&out, os.Stdout)
		}
		return peers.RunSuite(w, users.dir, url, access, secret, run)
	})
	if err != nil {
		return err
	}
	report(os.Stdout, read(&out))
	return nil
}

// withStore runs a store over dir while f runs.
func withStore(dir, users string, f func(url string) error) error {
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen, c.OnlyRegion = filepath.Join(dir, "data"), "127.0.0.1:0", "", true
	c.UsersFile = users
	c.Users = []objectstore.User{{Name: access, AccessKeyID: access, Secret: config.Secret(secret)}}
	s, err := objectstore.New(c, objectstore.Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		err = f("http://" + s.Addr())
		cancel()
		return errors.Join(err, <-done)
	case err := <-done:
		cancel()
		return err
	}
}

// result is one test's; failed says why it did.
type result struct{ name, failed string }

var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// read gives the results in the order of the tests. A failure of a test that did not say more is "".
func read(r io.Reader) []result {
	var list []result
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := color.ReplaceAllString(lines.Text(), "")
		kind, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		switch kind {
		case "RUN":
			list = append(list, result{name: rest, failed: "it did not end"})
		case "PASS", "SKIP":
			list[len(list)-1].failed = ""
		case "FAIL":
			_, why, _ := strings.Cut(rest, ": ")
			list[len(list)-1].failed = why
		}
	}
	return list
}

// report prints the failures, and how many tests pass of each operation.
func report(w io.Writer, list []result) {
	type count struct{ pass, all int }
	var names []string
	counts := map[string]*count{}
	total := count{}
	for _, r := range list {
		op, _, _ := strings.Cut(r.name, "_")
		if counts[op] == nil {
			names, counts[op] = append(names, op), &count{}
		}
		total.all++
		counts[op].all++
		if r.failed == "" {
			total.pass++
			counts[op].pass++
			continue
		}
		why, _, _ := strings.Cut(r.failed, "\n")
		fmt.Fprintf(w, "FAIL %s: %s\n", r.name, why)
	}
	slices.Sort(names)
	fmt.Fprintln(w)
	for _, n := range names {
		fmt.Fprintf(w, "%-34s %3d of %3d\n", n, counts[n].pass, counts[n].all)
	}
	fmt.Fprintf(w, "%-34s %3d of %3d\n", "all", total.pass, total.all)
}
