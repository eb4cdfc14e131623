package bucketpolicy

import (
	"fmt"
	"slices"
	"strings"
)

// Provider is a kind of store, as far as its policies differ.
type Provider struct {
	Name string
	// Conditions: policies can tell a conditional write from others, by s3:if-none-match and s3:if-match.
	Conditions bool
	// Copies: policies can tell a copy, by s3:x-amz-copy-source.
	Copies bool
	// Creations: s3:ObjectCreationOperation tells the parts of a multipart upload from what creates the object.
	Creations bool
	// Identity: credentials have policies of their own. Elsewhere the bucket's policy has all statements.
	Identity bool
	// Arns: principals of a bucket's policy are ARNs, which aws:PrincipalArn compares.
	Arns bool
	// Transport: aws:SecureTransport and encryption headers are conditions.
	Transport bool
	// Notes for who applies the policy: what the store lacks, and what of this is verified.
	Notes []string
}

// Providers that policies are made for.
var Providers = []Provider{
	{Name: "aws", Conditions: true, Copies: true, Creations: true, Identity: true, Arns: true, Transport: true, Notes: []string{
		"written to AWS's documentation; no test of this project has spoken to AWS: prove it with \"lmctl store qualify URL --strict --role ROLE\" for each role"}},
	{Name: "minio", Identity: true, Notes: []string{
		"not verified by a test of this project",
		"its policies are not known to tell conditional writes from others: nothing but the services' code keeps an own role from overwriting what it may create"}},
	{Name: "ceph", Identity: true, Arns: true, Notes: []string{
		"not verified by a test of this project",
		"its policies are not known to tell conditional writes from others: nothing but the services' code keeps an own role from overwriting what it may create"}},
	{Name: "versitygw", Notes: []string{
		"users have no policies of their own: this one, of the bucket, has all statements; principals are access key ids",
		"refuses s3:if-none-match and s3:if-match in conditions: nothing but the services' code keeps an own role from overwriting what it may create",
		"the root account and the bucket's owner are above every policy: give services accounts of role user"}},
	{Name: "embedded", Conditions: true, Copies: true, Creations: true, Identity: true, Arns: true},
}

// ProviderOf finds a provider by its name.
func ProviderOf(name string) (Provider, error) {
	var names []string
	for _, p := range Providers {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Provider{}, fmt.Errorf("provider %q: want one of %s", name, strings.Join(names, ", "))
}

// Enforces is what remains of a kind of request where the store's policies can't tell kinds apart: with
// any write every other write is allowed.
func (p Provider) Enforces(roles []Role, op Op, key string) bool {
	if !p.Conditions && (op == Create || op == Replace || op == Put) {
		return slices.ContainsFunc([]Op{Create, Replace, Put}, func(o Op) bool { return May(roles, o, key) })
	}
	return May(roles, op, key)
}
