package main

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
)

var updatePolicy = flag.Bool("update-policy", false, "write deploy/policies/bucket-policy.json")

func printPolicy(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return command(t, func(*format) *cobra.Command { return bucketPolicyCommand() }, append([]string{"bucket-policy"}, args...)...)
}

// TestShippedPolicyIsThePrintedOne: the file of deploy is what the command prints, with words to
// replace for the bucket and the reconciler.
func TestShippedPolicyIsThePrintedOne(t *testing.T) {
	const file = "../../deploy/policies/bucket-policy.json"
	out, code := printPolicy(t, "--bucket", "BUCKET", "--principal", "reconciler=arn:aws:iam::ACCOUNT:role/RECONCILER",
		"--principal", "gc=arn:aws:iam::ACCOUNT:role/RECONCILER", "--principal", "rollup=arn:aws:iam::ACCOUNT:role/ROLLUP")
	if code != cli.ExitOK {
		t.Fatalf("%d: %s", code, out)
	}
	if *updatePolicy {
		if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shipped, err := os.ReadFile(file)
	if err != nil || string(shipped) != out {
		t.Errorf("%v: %s is not what is printed; go test ./cmd/lmctl -run ShippedPolicy -update-policy writes it:\n%s", err, file, out)
	}
}

func TestBucketPolicyIsRefused(t *testing.T) {
	for what, args := range map[string][]string{
		"no bucket":                  {"--reconciler", "arn:aws:iam::1:role/r"},
		"no reconciler":              {"--bucket", "metrics"},
		"everybody":                  {"--bucket", "metrics", "--reconciler", "*"},
		"a name on AWS":              {"--bucket", "metrics", "--reconciler", "reconciler"},
		"a queue's URL":              {"--bucket", "metrics", "--role", "reconciler", "--queue", "https://sqs.eu-central-1.amazonaws.com/1/q"},
		"any queue":                  {"--bucket", "metrics", "--role", "reconciler", "--queue", "arn:aws:sqs:eu-central-1:123456789012:*"},
		"a queue for a role without": {"--bucket", "metrics", "--role", "ingest", "--queue", "arn:aws:sqs:eu-central-1:123456789012:q"},
		"a queue in the bucket's":    {"--bucket", "metrics", "--reconciler", "arn:aws:iam::1:role/r", "--queue", "arn:aws:sqs:eu-central-1:123456789012:q"},
		"a queue elsewhere":          {"--provider", "embedded", "--bucket", "metrics", "--role", "reconciler", "--queue", "arn:aws:sqs:eu-central-1:123456789012:q"},
		"other provider":             {"--bucket", "metrics", "--reconciler", "arn:aws:iam::1:role/r", "--provider", "gcp"},
	} {
		if out, code := printPolicy(t, args...); code != cli.ExitUsage {
			t.Errorf("%s: %d, %s", what, code, out)
		}
	}
	out, code := printPolicy(t, "--bucket", "metrics", "--role", "reconciler,gc", "--queue", "arn:aws:sqs:eu-central-1:123456789012:q")
	if want := `"Action":["sqs:ReceiveMessage","sqs:DeleteMessage","sqs:GetQueueAttributes"],"Resource":["arn:aws:sqs:eu-central-1:123456789012:q"]`; code != 0 || !strings.Contains(out, want) {
		t.Errorf("%d: %s", code, out)
	}
	out, code = printPolicy(t, "--provider", "embedded", "--bucket", "metrics", "--prefix", "prod", "--reconciler", "folder")
	if code != 0 || !strings.Contains(out, `"arn:aws:s3:::metrics/prod/accepted/v1/*"`) || !strings.Contains(out, `"arn:aws:iam::000000000000:user/folder"`) {
		t.Errorf("%d: %s", code, out)
	}
}

// Who prints the policy as for a former release is told that nobody may delete frames under it.
func TestBucketPolicyNamesWhoIsMissing(t *testing.T) {
	for want, principals := range map[int][]string{2: {"reconciler=folder"}, 1: {"reconciler=folder", "gc=folder"}, 0: {"reconciler=folder", "gc=folder", "rollup=worker"}} {
		args := []string{"--provider", "embedded", "--bucket", "metrics"}
		for _, p := range principals {
			args = append(args, "--principal", p)
		}
		cmd := bucketPolicyCommand()
		var notes strings.Builder
		cmd.SetErr(&notes)
		cmd.SetOut(io.Discard)
		cmd.SetArgs(args)
		if err := cmd.Execute(); err != nil || strings.Count(notes.String(), "the bucket refuses") != want {
			t.Errorf("%v: %v, %s", principals, err, notes.String())
		}
	}
}
