// Package bucketpolicy has the policy that a bucket of an acceptance authority needs: records of
// acceptance are created once and never changed, and only the reconciler folds the journal.
// internal/acceptance/qualify probes whether a bucket has it.
package bucketpolicy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// Options of a policy.
type Options struct {
	// Bucket is the bucket's name.
	Bucket string
	// Prefix of the authority, empty or ending in a slash.
	Prefix string
	// Reconcilers are the principals that fold the journal, as ARNs in which * and ? are wildcards,
	// such as arn:aws:iam::123456789012:role/lightmetrics-reconciler; at least one.
	Reconcilers []string
}

// Statement is one statement of a policy document. Principal is empty in a user's policy.
type Statement struct {
	Sid       string
	Effect    string
	Principal string `json:",omitempty"`
	Action    []string
	Resource  []string
	Condition map[string]map[string][]string `json:",omitempty"`
}

var (
	put    = []string{"s3:PutObject"}
	remove = []string{"s3:DeleteObject", "s3:DeleteObjectVersion"}
)

// createdOnce are the keys that are never written twice. A star ends each, so that the probe has a
// key of its own beside every single object.
var createdOnce = []string{
	layout.AcceptedPrefix, layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix,
}

// movedByMatch are the keys that are replaced, and only by who knows what is there. The begin of the journal is, once an audit
// has entered what a lost file had. Of condemned
// generations the markers are never replaced, and the records of hours only raised.
var movedByMatch = []string{layout.JournalHeadKey, layout.JournalBeginKey, layout.AuthorityKey, layout.CondemnedPrefix}

// neverDeleted are the keys that nobody deletes.
var neverDeleted = []string{layout.AcceptedPrefix, layout.AuthorityKey, layout.JournalBeginKey, layout.JournalHeadKey, layout.CondemnedPrefix}

// folded are the keys that only reconcilers write, and journal those that only they delete.
var (
	folded  = []string{layout.JournalHeadKey, layout.JournalFoldedPrefix}
	journal = []string{layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix}
)

// resources are the ARNs of keys, or of all keys under prefixes.
func (o Options) resources(keys []string) []string {
	out := make([]string, 0, len(keys))
	for _, k := range keys {
		out = append(out, "arn:aws:s3:::"+o.Bucket+"/"+o.Prefix+k+"*")
	}
	return out
}

func null(keys ...string) map[string]map[string][]string {
	c := map[string][]string{}
	for _, k := range keys {
		c[k] = []string{"true"}
	}
	return map[string]map[string][]string{"Null": c}
}

// everybody are the statements that hold for every principal.
func (o Options) everybody() []Statement {
	return []Statement{
		{Sid: "AcceptanceIsOnlyCreated", Effect: "Deny", Action: put, Resource: o.resources(createdOnce), Condition: null("s3:if-none-match")},
		{Sid: "HeadAndAuthorityAreReplacedByIfMatch", Effect: "Deny", Action: put, Resource: o.resources(movedByMatch), Condition: null("s3:if-none-match", "s3:if-match")},
		{Sid: "AcceptanceIsNeverDeleted", Effect: "Deny", Action: remove, Resource: o.resources(neverDeleted)},
	}
}

// others are the statements that hold for all but reconcilers.
func (o Options) others() []Statement {
	return []Statement{
		{Sid: "OnlyReconcilersFoldTheJournal", Effect: "Deny", Action: put, Resource: o.resources(folded)},
		{Sid: "OnlyReconcilersDeleteFromTheJournal", Effect: "Deny", Action: remove, Resource: o.resources(journal)},
	}
}

// Validate refuses what makes no policy.
func (o Options) Validate() error {
	switch {
	case o.Bucket == "" || strings.ContainsAny(o.Bucket, "*?/"):
		return fmt.Errorf("bucket %q is no bucket's name", o.Bucket)
	case o.Prefix != "" && !strings.HasSuffix(o.Prefix, "/") || strings.ContainsAny(o.Prefix, "*?$"):
		return fmt.Errorf("prefix %q does not end in a slash, or has a wildcard", o.Prefix)
	case len(o.Reconcilers) == 0:
		return fmt.Errorf("the principal of the reconcilers is needed: only they delete from the journal")
	}
	for _, r := range o.Reconcilers {
		if !strings.HasPrefix(r, "arn:") || strings.Trim(r, "*?") != r {
			return fmt.Errorf("reconciler %q: want the ARN of a role or user, such as arn:aws:iam::123456789012:role/lightmetrics-reconciler", r)
		}
	}
	return nil
}

// Bucket is the policy of the bucket, as JSON. It only denies: what principals may do is
// for their own policies.
func Bucket(o Options) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("bucket policy: %w", err)
	}
	statements := o.everybody()
	for _, s := range o.others() {
		s.Condition = map[string]map[string][]string{"StringNotLike": {"aws:PrincipalArn": o.Reconcilers}}
		statements = append(statements, s)
	}
	for i := range statements {
		statements[i].Principal = "*"
	}
	return marshal(statements)
}

// User is the policy of a user of the embedded store, for the services of one machine: everything
// but what Bucket denies. reconciler says whether it is the reconciler's.
func User(bucket string, reconciler bool) ([]byte, error) {
	o := Options{Bucket: bucket}
	statements := append([]Statement{{Sid: "Everything", Effect: "Allow", Action: []string{"s3:*"}, Resource: []string{"*"}}}, o.everybody()...)
	if !reconciler {
		statements = append(statements, o.others()...)
	}
	return marshal(statements)
}

// marshal writes one statement a line, so that people can read the document.
func marshal(statements []Statement) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("{\"Version\": \"2012-10-17\", \"Statement\": [\n")
	for i, s := range statements {
		line, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		b.WriteString("  ")
		b.Write(line)
		if i < len(statements)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("]}\n")
	return b.Bytes(), nil
}
