package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/cli"
)

// embeddedAccount is the account of the embedded store's users.
const embeddedAccount = "arn:aws:iam::000000000000:user/"

func usage(err error) error {
	return &cli.ExitError{Code: cli.ExitUsage, Err: errors.Join(err, errors.New("lmctl bucket-policy --help has examples"))}
}

// policyFlags are those of bucket-policy.
type policyFlags struct {
	o                                  bucketpolicy.Options
	provider                           string
	principals, reconcilers, roleNames []string
	lifecycle                          bool
}

// options reads the flags.
func (f *policyFlags) options() (o bucketpolicy.Options, roles []bucketpolicy.Role, err error) {
	o = f.o
	if o.Provider, err = bucketpolicy.ProviderOf(f.provider); err != nil {
		return o, nil, err
	}
	// As in a bucket's URL: without its slash a prefix would also cover those that merely begin with it.
	if o.Prefix != "" && !strings.HasSuffix(o.Prefix, "/") {
		o.Prefix += "/"
	}
	o.Principals = map[bucketpolicy.Role][]string{}
	for _, r := range f.reconcilers {
		f.principals = append(f.principals, string(bucketpolicy.Reconciler)+"="+r)
	}
	for _, p := range f.principals {
		role, name, ok := strings.Cut(p, "=")
		if !ok {
			return o, nil, fmt.Errorf("--principal %q: want ROLE=PRINCIPAL", p)
		}
		// The user's name, as it stands in objectstore.users.
		if o.Provider.Name == "embedded" && !strings.HasPrefix(name, "arn:") {
			name = embeddedAccount + name
		}
		r := bucketpolicy.Role(role)
		o.Principals[r] = append(o.Principals[r], name)
	}
	roles, err = bucketpolicy.RolesOf(f.roleNames)
	return o, roles, err
}

func (f *policyFlags) text() ([]byte, bucketpolicy.Provider, error) {
	o, roles, err := f.options()
	switch {
	case err != nil:
		return nil, o.Provider, err
	case f.lifecycle:
		return bucketpolicy.Lifecycle(), o.Provider, nil
	case len(roles) == 0 && o.Queue != "":
		return nil, o.Provider, errors.New("--queue: it is for the policy of a service's credentials, so --role is needed")
	case len(roles) == 0:
		text, err := bucketpolicy.Bucket(o)
		// A policy that was printed by a former release named the reconcilers alone.
		for _, r := range bucketpolicy.Unnamed(o) {
			o.Provider.Notes = append(slices.Clip(o.Provider.Notes), fmt.Sprintf("no --principal %s=…: the bucket refuses what only %s may do, also where the same process has another role", r, r))
		}
		return text, o.Provider, err
	case !o.Provider.Identity:
		return nil, o.Provider, fmt.Errorf("--role: credentials of %s have no policies of their own; without --role the bucket's policy has everything", o.Provider.Name)
	}
	text, err := bucketpolicy.User(o, roles...)
	return text, o.Provider, err
}

func bucketPolicyCommand() *cobra.Command {
	var f policyFlags
	cmd := &cobra.Command{
		Use:   "bucket-policy --bucket BUCKET (--role ROLE | --principal ROLE=PRINCIPAL ...)",
		Short: "Print the policies that services and the authority's bucket need",
		Long: "With --role, prints the policy of the credentials of a service: the least that it needs. Several roles make the\n" +
			"policy of one process that has them all, as \"reconciler,gc\".\n" +
			"Without, prints the policy of the bucket, for PutBucketPolicy: what was accepted is created once, never overwritten\n" +
			"and never deleted, and only reconcilers fold the journal, only gc and rollup delete frames. It needs to know them by\n" +
			"--principal. Where credentials have no policies of their own (versitygw) it has everything that services may do.\n" +
			"What the provider lacks is said on standard error. \"lmctl store qualify URL --strict --role ROLE\", with the\n" +
			"credentials of each service, proves that a bucket has both.",
		Example: "  lmctl bucket-policy --bucket metrics --prefix prod/ --role ingest\n" +
			"  lmctl bucket-policy --bucket metrics --prefix prod/ --principal reconciler=arn:aws:iam::123456789012:role/lightmetrics-reconciler \\\n" +
			"    --principal gc=arn:aws:iam::123456789012:role/lightmetrics-reconciler --principal rollup=arn:aws:iam::123456789012:role/lightmetrics-rollup\n" +
			"  lmctl bucket-policy --bucket metrics --prefix prod/ --role reconciler,gc --queue arn:aws:sqs:eu-central-1:123456789012:metrics-events\n" +
			"  lmctl bucket-policy --provider embedded --bucket lightmetrics --role reconciler,gc\n" +
			"  lmctl bucket-policy --provider versitygw --bucket metrics --principal ingest=AKIA1 --principal reconciler=AKIA2\n" +
			"  lmctl bucket-policy --lifecycle",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, provider, err := f.text()
			if err != nil {
				return usage(err)
			}
			for _, n := range provider.Notes {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", provider.Name, n)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.provider, "provider", "aws", "aws, minio, ceph, versitygw, or embedded: the store of this project")
	flags.StringVar(&f.o.Bucket, "bucket", "", "name of the bucket")
	flags.StringVar(&f.o.Prefix, "prefix", "", "prefix of the authority")
	flags.BoolVar(&f.o.TLSOnly, "tls-only", false, "requests without TLS are denied (aws)")
	flags.StringVar(&f.o.Encryption, "encryption", "", "AES256 or aws:kms: writes that ask for another encryption are denied (aws)")
	flags.StringVar(&f.o.Queue, "queue", "", "ARN of an SQS queue from which the role, reconciler or query, takes the bucket's events (aws)")
	flags.StringSliceVar(&f.roleNames, "role", nil, "print the policy of credentials with these roles: "+bucketpolicy.Names(bucketpolicy.Roles))
	flags.StringSliceVar(&f.principals, "principal", nil, "ROLE=PRINCIPAL, the ARN of a role or user, a user's name in the embedded store, or an access key id (versitygw); may be repeated")
	flags.StringSliceVar(&f.reconcilers, "reconciler", nil, "the same as --principal reconciler=…")
	flags.BoolVar(&f.lifecycle, "lifecycle", false, "print the lifecycle configuration that the bucket may have")
	return cmd
}
