package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

func storeCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "The object store"}
	var strict bool
	var roleNames []string
	var provider string
	q := &cobra.Command{
		Use:   "qualify URL [--strict] [--role ROLE]",
		Short: "Probe a store for the semantics that acceptance relies on",
		Long: "Probes conditional creates, their races, read and list after write, If-Match and checksum refusal under\n" +
			"probe/v1/. With --strict also that the bucket has the policy that \"lmctl bucket-policy\" prints, as a collector's\n" +
			"credentials meet it, and the bucket's lifecycle and versioning; nothing is written for that.\n" +
			"With --role, instead, that the credentials may do what a service of this role needs and nothing else: each kind of\n" +
			"request to each family of keys, in a way that changes nothing. Exits 1 when a check fails.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			store, err := openBucket(ctx, args[0])
			if err != nil {
				return err
			}
			roles, err := bucketpolicy.RolesOf(roleNames)
			if err != nil {
				return &cli.ExitError{Code: cli.ExitUsage, Err: err}
			}
			kind, err := bucketpolicy.ProviderOf(provider)
			if err != nil {
				return &cli.ExitError{Code: cli.ExitUsage, Err: err}
			}
			var report qualify.Report
			o := qualify.Options{RunID: runID(), Strict: strict, Now: time.Now}
			if len(roles) > 0 {
				report, err = qualify.Role(ctx, store, kind, roles, o)
			} else {
				report, err = qualify.Run(ctx, store, o)
			}
			// The table is printed also when the probe broke off: it says how far it came.
			if werr := out.write(cmd.OutOrStdout(), report, qualifyTable(report)); werr != nil {
				return werr
			}
			if err == nil {
				return nil
			}
			failed := 0
			for _, row := range report.Rows {
				if row.Status == qualify.Fail {
					failed++
				}
			}
			// The table has the causes.
			e := &cli.ExitError{Code: cli.ExitFailed, Err: fmt.Errorf("the store does not qualify: %d of %d checks failed", failed, len(report.Rows))}
			if qualify.Unanswered(err) || errors.As(reached(err), new(*cli.ExitError)) {
				e.Code = cli.ExitUnreachable
			}
			return e
		},
	}
	q.Flags().BoolVar(&strict, "strict", false, "probe the bucket's policy, lifecycle and versioning too")
	q.Flags().StringSliceVar(&roleNames, "role", nil, "probe what the credentials may do, against what these roles need: "+bucketpolicy.Names(bucketpolicy.Roles))
	q.Flags().StringVar(&provider, "provider", "aws", "aws, minio, ceph, versitygw or embedded: what its policies can tell apart is what --role wants of it")
	cmd.AddCommand(q, storeCheckCommand(out), storeRepairCommand(out), storeKeysCommand(out), storeUsageCommand(out), storeQuotaCommand(out), storeReplaceCommand(), storeMembersCommand(out))
	cmd.AddCommand(storePlacesCommands(out)...)
	return cmd
}

// runID keeps the keys of two probes apart.
func runID() string {
	return fmt.Sprintf("lmctl-%d-%d", time.Now().UnixNano(), os.Getpid())
}

func qualifyTable(r qualify.Report) table {
	t := table{header: []string{"CHECK", "RESULT", "TOOK", "DETAIL"}}
	first := map[string]string{} // check that had a cause first
	for _, row := range r.Rows {
		detail := row.Detail
		if c := cause(row.Err); c != "" {
			// A server that does not answer fails every check with one cause, which is printed once.
			if other, ok := first[c]; ok {
				detail = "as " + other
			} else {
				first[c] = row.Check
			}
		}
		t.rows = append(t.rows, []string{row.Check, string(row.Status), row.Took.Round(10 * time.Microsecond).String(), detail})
	}
	return t
}

// cause is what a failed request to the store met, without its operation and key.
func cause(err error) string {
	var e *objstore.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Err.Error()
}
