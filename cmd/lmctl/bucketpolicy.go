package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/cli"
)

// embeddedAccount is the account of the embedded store's users.
const embeddedAccount = "arn:aws:iam::000000000000:user/"

func bucketPolicyCommand() *cobra.Command {
	var o bucketpolicy.Options
	var provider string
	cmd := &cobra.Command{
		Use:   "bucket-policy --bucket BUCKET --reconciler PRINCIPAL",
		Short: "Print the policy that the authority's bucket needs",
		Long: "Prints a bucket policy, for PutBucketPolicy: acceptance records and segments of the journal are created once and\n" +
			"never overwritten, records are never deleted, and only reconcilers fold the journal and delete from it.\n" +
			"It only denies. What else each service may do is for the policies of its own credentials.\n" +
			"\"lmctl store qualify URL --strict\", with a collector's credentials, proves that a bucket has it.",
		Example: "  lmctl bucket-policy --bucket metrics --prefix prod/ --reconciler arn:aws:iam::123456789012:role/lightmetrics-reconciler\n" +
			"  lmctl bucket-policy --provider embedded --bucket lightmetrics --reconciler lightmetrics-reconciler",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch provider {
			case "aws":
			case "embedded":
				for i, r := range o.Reconcilers {
					// The user's name, as it stands in objectstore.users.
					if !strings.HasPrefix(r, "arn:") {
						o.Reconcilers[i] = embeddedAccount + r
					}
				}
			default:
				return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("--provider %q: want aws or embedded", provider)}
			}
			// As in a bucket's URL: without its slash a prefix would also cover those that merely begin with it.
			if o.Prefix != "" && !strings.HasSuffix(o.Prefix, "/") {
				o.Prefix += "/"
			}
			text, err := bucketpolicy.Bucket(o)
			if err != nil {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.Join(err, errors.New("lmctl bucket-policy --help has examples"))}
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&provider, "provider", "aws", "aws, or embedded: the store of this project")
	cmd.Flags().StringVar(&o.Bucket, "bucket", "", "name of the bucket")
	cmd.Flags().StringVar(&o.Prefix, "prefix", "", "prefix of the authority")
	cmd.Flags().StringSliceVar(&o.Reconcilers, "reconciler", nil, "ARN of the reconcilers' role or user, or a user's name in the embedded store; may be repeated")
	return cmd
}
