// Package bucketpolicy has who may do what in the bucket of an acceptance authority, as one table: the
// least that each service needs, and what the bucket refuses to everybody. Policies for several kinds of
// stores, the page of the guide and the tests are made of the table. internal/acceptance/qualify probes
// whether a bucket holds to it.
package bucketpolicy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// Options of a policy.
type Options struct {
	// Provider of the store; the zero value is the embedded one.
	Provider Provider
	// Bucket is the bucket's name.
	Bucket string
	// Prefix of the authority, empty or ending in a slash.
	Prefix string
	// Principals have the roles: ARNs in which * and ? are wildcards, such as
	// arn:aws:iam::123456789012:role/lightmetrics-reconciler, or access key ids where the provider has no ARNs.
	Principals map[Role][]string
	// TLSOnly denies requests without TLS.
	TLSOnly bool
	// Encryption, if it is not empty, is the only one that writes may ask for: AES256 or aws:kms.
	Encryption string
	// Queue, if it is not empty, is the ARN of an SQS queue from which these credentials take the bucket's events.
	Queue string
}

// Statement is one statement of a policy document. Principal is nil in a user's policy.
type Statement struct {
	Sid       string
	Effect    string
	Principal any `json:",omitempty"`
	Action    []string
	Resource  []string
	Condition map[string]map[string][]string `json:",omitempty"`
}

var (
	putAction = []string{"s3:PutObject"}
	// Deletes of versions are granted for frames alone, whose bytes are to be gone also where the bucket is versioned.
	removeActions = []string{"s3:DeleteObject", "s3:DeleteObjectVersion"}
)

func (o Options) provider() Provider {
	if o.Provider.Name == "" {
		p, _ := ProviderOf("embedded")
		return p
	}
	return o.Provider
}

func (o Options) bucketARN() string { return "arn:aws:s3:::" + o.Bucket }

// resources are the ARNs of all keys under prefixes.
func (o Options) resources(keys []string) []string {
	out := make([]string, 0, len(keys))
	for _, k := range keys {
		out = append(out, o.bucketARN()+"/"+o.Prefix+k+"*")
	}
	return out
}

type condition = map[string]map[string][]string

func null(value string, keys ...string) condition {
	c := map[string][]string{}
	for _, k := range keys {
		c[k] = []string{value}
	}
	return condition{"Null": c}
}

// everybody are the statements that hold for every principal.
func (o Options) everybody() []Statement {
	var out []Statement
	for _, r := range rules {
		if len(r.except) == 0 {
			out = append(out, o.deny(r)...)
		}
	}
	return out
}

// deny makes the statements of a rule, without its exceptions. It makes all that the rule refuses, or panics: no rule of the table may
// be dropped unseen.
func (o Options) deny(r rule) []Statement {
	p, keys := o.provider(), o.resources(r.keys)
	var out []Statement
	writes := r.deny &^ Delete
	if r.deny&Delete != 0 {
		sid := r.sid
		if writes != 0 {
			sid += "NotDeleted"
		}
		out = append(out, Statement{Sid: sid, Effect: "Deny", Action: removeActions, Resource: keys})
	}
	switch writes {
	case 0:
		return out
	case Create | Replace | Put:
		return append(out, Statement{Sid: r.sid, Effect: "Deny", Action: putAction, Resource: keys})
	case Put, Replace | Put:
	default:
		panic(fmt.Sprintf("bucketpolicy: rule %s refuses what no statement is made for: %b", r.sid, r.deny))
	}
	// The rest denies some writes and allows others.
	if p.Conditions {
		c := null("true", "s3:if-none-match")
		if r.deny&Replace == 0 {
			c["Null"]["s3:if-match"] = []string{"true"}
		}
		if p.Creations {
			// The parts of a multipart upload carry no condition. Its completion does.
			c["Bool"] = map[string][]string{"s3:ObjectCreationOperation": {"true"}}
		}
		out = append(out, Statement{Sid: r.sid, Effect: "Deny", Action: putAction, Resource: keys, Condition: c})
	}
	if r.copies && p.Copies {
		out = append(out, Statement{Sid: r.sid + "NotCopied", Effect: "Deny", Action: putAction, Resource: keys, Condition: null("false", "s3:x-amz-copy-source")})
	}
	return out
}

// Validate refuses what makes no policy.
func (o Options) Validate() error {
	switch {
	case o.Bucket == "" || strings.ContainsAny(o.Bucket, "*?/"):
		return fmt.Errorf("bucket %q is no bucket's name", o.Bucket)
	case o.Prefix != "" && !strings.HasSuffix(o.Prefix, "/") || strings.ContainsAny(o.Prefix, "*?$"):
		return fmt.Errorf("prefix %q does not end in a slash, or has a wildcard", o.Prefix)
	case o.Encryption != "" && o.Encryption != "AES256" && o.Encryption != "aws:kms":
		return fmt.Errorf("encryption %q: want AES256 or aws:kms", o.Encryption)
	case (o.Encryption != "" || o.TLSOnly) && !o.provider().Transport:
		return fmt.Errorf("encryption and TLS: policies of %s have no condition for them", o.provider().Name)
	}
	if o.Queue != "" && (o.provider().Name != "aws" || !queueARN.MatchString(o.Queue)) {
		return fmt.Errorf("queue %q: want the ARN of one, such as arn:aws:sqs:eu-central-1:123456789012:metrics, and the provider aws", o.Queue)
	}
	for r, names := range o.Principals {
		if !slices.Contains(Roles, r) {
			return fmt.Errorf("role %q: want one of %s", r, Names(Roles))
		}
		for _, n := range names {
			switch {
			case n == "" || strings.Trim(n, "*?") != n:
				return fmt.Errorf("%s %q begins or ends with a wildcard", r, n)
			case o.provider().Arns && !strings.HasPrefix(n, "arn:"):
				return fmt.Errorf("%s %q: want the ARN of a role or user, such as arn:aws:iam::123456789012:role/lightmetrics-%s", r, n, r)
			}
		}
	}
	return nil
}

// Names lists roles, for people.
func Names(roles []Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// RolesOf reads names of roles.
func RolesOf(names []string) ([]Role, error) {
	var roles []Role
	for _, n := range names {
		if !slices.Contains(Roles, Role(n)) {
			return nil, fmt.Errorf("role %q: want one of %s", n, Names(Roles))
		}
		roles = append(roles, Role(n))
	}
	return roles, nil
}

// Unnamed are the roles that rules of the bucket except and that no principal has: what only they may do
// is then refused to everybody.
func Unnamed(o Options) (out []Role) {
	for _, role := range Roles {
		excepted := slices.ContainsFunc(rules, func(r rule) bool { return slices.Contains(r.except, role) })
		if excepted && len(o.Principals[role]) == 0 {
			out = append(out, role)
		}
	}
	return out
}

// Bucket is the policy of the bucket, as JSON. Where credentials have policies of their own it only
// denies; elsewhere it has all their statements too.
func Bucket(o Options) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("bucket policy: %w", err)
	}
	p, statements := o.provider(), o.everybody()
	if len(o.Principals[Reconciler]) == 0 {
		return nil, fmt.Errorf("bucket policy: the principal of the reconcilers is needed: only they delete from the journal")
	}
	for _, r := range rules {
		if len(r.except) == 0 || !p.Arns {
			continue // without ARNs nobody has what no statement allows
		}
		var who []string
		for _, role := range r.except {
			who = append(who, o.Principals[role]...)
		}
		slices.Sort(who)
		for _, s := range o.deny(r) {
			if len(who) > 0 {
				// Beside the conditions of the statement itself: all of them have to hold.
				c := condition{"StringNotLike": {"aws:PrincipalArn": slices.Compact(who)}}
				maps.Copy(c, s.Condition)
				s.Condition = c
			}
			statements = append(statements, s)
		}
	}
	statements = append(statements, o.transport()...)
	for i := range statements {
		statements[i].Principal = "*"
	}
	if !p.Identity {
		for _, r := range Roles {
			for _, s := range o.allow(r) {
				if who := o.Principals[r]; len(who) > 0 {
					s.Sid, s.Principal = title(r)+s.Sid, map[string][]string{"AWS": who}
					statements = append(statements, s)
				}
			}
		}
	}
	return marshal(statements)
}

func title(r Role) string {
	if r == GC {
		return "GC"
	}
	return strings.ToUpper(string(r[:1])) + string(r[1:])
}

// transport denies requests without TLS, and writes that ask for another encryption than the bucket's.
func (o Options) transport() []Statement {
	all := []string{o.bucketARN(), o.bucketARN() + "/" + o.Prefix + "*"}
	var out []Statement
	if o.TLSOnly {
		out = append(out, Statement{Sid: "OnlyOverTLS", Effect: "Deny", Action: []string{"s3:*"}, Resource: all, Condition: condition{"Bool": {"aws:SecureTransport": {"false"}}}})
	}
	if o.Encryption != "" {
		// Requests that name none are encrypted as the bucket's default says.
		out = append(out, Statement{Sid: "OnlyThisEncryption", Effect: "Deny", Action: putAction, Resource: all[1:],
			Condition: condition{"StringNotEqualsIfExists": {"s3:x-amz-server-side-encryption": {o.Encryption}}}})
	}
	return out
}

// keysOf are the keys of a role's grants with the kind, without those that another one covers.
func keysOf(roles []Role, op Op) []string {
	var keys []string
	for _, r := range roles {
		for _, g := range grants[r] {
			if g.Ops&op != 0 {
				keys = append(keys, g.Keys...)
			}
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
		return slices.ContainsFunc(keys, func(other string) bool { return other != k && strings.HasPrefix(k, other) })
	})
}

// without leaves out the keys that those of more cover already.
func without(keys, more []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return under(k, more) })
}

func under(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}

// allow are the statements that give roles what they need.
func (o Options) allow(roles ...Role) []Statement {
	p := o.provider()
	var out []Statement
	add := func(sid string, keys []string, c condition, actions ...string) {
		if len(keys) > 0 {
			out = append(out, Statement{Sid: sid, Effect: "Allow", Action: actions, Resource: o.resources(keys), Condition: c})
		}
	}
	add("Read", keysOf(roles, Get), nil, "s3:GetObject")
	if p.Conditions {
		put := keysOf(roles, Put)
		add("Put", put, nil, "s3:PutObject")
		add("Create", without(keysOf(roles, Create), put), null("false", "s3:if-none-match"), "s3:PutObject")
		add("Replace", without(keysOf(roles, Replace), put), null("false", "s3:if-match"), "s3:PutObject")
	} else {
		add("Write", keysOf(roles, Create|Replace|Put), nil, "s3:PutObject")
	}
	add("Tag", keysOf(roles, Tag), nil, "s3:PutObjectTagging")
	add("Delete", keysOf(roles, Delete), nil, "s3:DeleteObject")
	add("DeleteVersions", slices.DeleteFunc(keysOf(roles, Delete), func(k string) bool { return k != layout.RawBlobsPrefix }), nil, "s3:DeleteObjectVersion")
	return append(out, o.list(roles)...)
}

// list allows listings under prefixes, and makes an absent key a 404: without s3:ListBucket AWS answers
// 403, and the request of the key that it then decides about has no s3:prefix.
func (o Options) list(roles []Role) []Statement {
	list, bucket := []string{"s3:ListBucket"}, []string{o.bucketARN()}
	out := []Statement{{Sid: "AbsentIsNotDenied", Effect: "Allow", Action: list, Resource: bucket, Condition: null("true", "s3:prefix")}}
	var prefixes []string
	for _, k := range keysOf(roles, List) {
		prefixes = append(prefixes, o.Prefix+k+"*")
	}
	if len(prefixes) > 0 {
		out = append(out, Statement{Sid: "List", Effect: "Allow", Action: list, Resource: bucket, Condition: condition{"StringLike": {"s3:prefix": prefixes}}})
	}
	if slices.Contains(roles, Operator) {
		out = append(out, Statement{Sid: "SeeSettings", Effect: "Allow", Resource: bucket,
			Action: []string{"s3:GetBucketPolicy", "s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"}})
	}
	return out
}

var queueARN = regexp.MustCompile(`^arn:aws[a-z-]*:sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,80}$`)

// takers of events are the roles whose services can.
var takers = []Role{Reconciler, Query}

// queueActions are what a consumer of the bucket's events asks its queue for.
var queueActions = []string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}

// User is the policy of credentials with these roles, as JSON: the least that they need, and, against
// a mistake in that, what the bucket refuses.
func User(o Options, roles ...Role) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("policy of %s: %w", Names(roles), err)
	}
	for _, r := range roles {
		if !slices.Contains(Roles, r) {
			return nil, fmt.Errorf("role %q: want some of %s", r, Names(Roles))
		}
	}
	if len(roles) == 0 {
		return nil, fmt.Errorf("a role is needed: some of %s", Names(Roles))
	}
	statements := o.allow(roles...)
	if o.Queue != "" {
		if !slices.ContainsFunc(roles, func(r Role) bool { return slices.Contains(takers, r) }) {
			return nil, fmt.Errorf("queue: only %s take events", Names(takers))
		}
		statements = append(statements, Statement{Sid: "TakeEvents", Effect: "Allow", Action: queueActions, Resource: []string{o.Queue}})
	}
	if o.provider().Name == "embedded" {
		// There it is usual to have no policy of the bucket.
		statements = append(statements, o.everybody()...)
	}
	return marshal(statements)
}

// Lifecycle is the only lifecycle configuration that the bucket may have: unfinished multipart uploads
// are aborted. Nothing here makes any, people's tools do.
func Lifecycle() []byte {
	return []byte(`{"Rules": [{"ID": "abort-multipart", "Status": "Enabled", "Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}]}` + "\n")
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
