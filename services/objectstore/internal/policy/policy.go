// Package policy parses and evaluates a subset of AWS policies: Allow and Deny, principals by user
// name, actions and resources with wildcards, and conditions. A policy with anything else is
// refused when it is set, never ignored: an unknown condition could be what protects an object.
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Document is a policy.
type Document struct {
	Version   *string
	ID        string `json:"Id"`
	Statement []Statement
}

// Statement allows or denies.
type Statement struct {
	Sid       string
	Effect    string // Allow or Deny
	Principal Principal
	Action    Texts
	Resource  Texts
	// Condition is operator -> key -> values; all must hold.
	Condition map[string]map[string]Texts
}

// Texts is one string or a list.
type Texts []string

// UnmarshalJSON takes a string, a boolean, a number, or a list of them.
func (t *Texts) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // as it was written
	var one any
	if err := d.Decode(&one); err != nil {
		return err
	}
	list, ok := one.([]any)
	if !ok {
		list = []any{one}
	}
	for _, x := range list {
		switch v := x.(type) {
		case string:
			*t = append(*t, v)
		case bool, json.Number:
			*t = append(*t, fmt.Sprint(v))
		default:
			return fmt.Errorf("want a string or a list, not %T", x)
		}
	}
	return nil
}

// Principal names users; "*" is everyone.
type Principal []string

// UnmarshalJSON takes "*" or {"AWS": name or list}.
func (p *Principal) UnmarshalJSON(b []byte) error {
	var t Texts
	if len(b) > 0 && b[0] == '{' {
		var m map[string]Texts
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		for k, v := range m {
			if k != "AWS" {
				return fmt.Errorf("principal %q is not supported", k)
			}
			t = v
		}
	} else if err := json.Unmarshal(b, &t); err != nil {
		return err
	}
	for _, s := range t {
		// ARNs of IAM users are accepted for the name at their end: the store has one account.
		if i := strings.LastIndex(s, ":user/"); i >= 0 {
			s = s[i+len(":user/"):]
		}
		*p = append(*p, s)
	}
	return nil
}

// Request is what a policy decides about.
type Request struct {
	// User is who asks; "" is nobody, an anonymous request.
	User     string
	Action   string  // such as s3:PutObject
	Resource string  // arn:aws:s3:::bucket/key
	Context  []Value // condition keys that are present
	// Lookup gives the values of the condition keys that are not in Context; nil values: the request does not have it.
	// It may be nil. Keys come in the case of the policy.
	Lookup func(key string) []string
}

// Value is a condition key of a request, with its value.
type Value struct{ Key, Value string }

// Error is the reason why a policy is refused. Message is AWS's, Detail says where and what.
type Error struct{ Message, Detail string }

func (e *Error) Error() string { return "policy: " + e.Detail }

func refuse(message, format string, args ...any) *Error {
	return &Error{message, fmt.Sprintf(format, args...)}
}

const (
	badJSON      = "This policy contains invalid Json"
	badPrincipal = "Invalid principal in policy"
	badResource  = "Policy has invalid resource"
)

// Parse reads a policy and refuses what is not supported. With bucket set it must be a
// bucket's policy: principals given, and no resource of another bucket.
func Parse(b []byte, bucket string) (*Document, error) { return parse(b, bucket, nil) }

// ParseNew is Parse for a bucket's policy that is to be set. It refuses besides what would not do what it says: users that
// are not known, actions that are none, and actions that fit neither the resources nor the conditions of their statement.
func ParseNew(b []byte, bucket string, known func(user string) bool) (*Document, error) {
	return parse(b, bucket, known)
}

func parse(b []byte, bucket string, known func(user string) bool) (*Document, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var doc Document
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return nil, refuse("Policies must be valid JSON and the first byte must be '{'", "no JSON object")
	}
	if err := d.Decode(&doc); err != nil {
		return nil, refuse(badJSON, "%v", err)
	}
	// Whatever follows would be ignored, and with it statements that somebody relies on. Decoder.More
	// is not enough: it takes a closing bracket for the end.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, refuse(badJSON, "text behind the document")
	}
	// A bucket's policy that is stored already stays in force as it was read.
	if isNew := bucket == "" || known != nil; isNew {
		if err := refuseTwice(b); err != nil {
			return nil, err
		}
		if err := doc.refuseVariables(); err != nil {
			return nil, err
		}
	}
	switch {
	case doc.Statement == nil:
		return nil, refuse("Missing required field Statement", "no statement")
	case len(doc.Statement) == 0:
		return nil, refuse("Could not parse the policy: Statement is empty!", "no statement")
	case doc.Version != nil && *doc.Version != "2012-10-17" && *doc.Version != "2008-10-17":
		return nil, refuse("The policy must contain a valid version string", "version %q: want 2012-10-17", *doc.Version)
	}
	for i, s := range doc.Statement {
		err := s.checkPrincipals(known)
		if err == nil {
			err = s.check(bucket)
		}
		if err == nil && known != nil {
			err = s.checkSense()
		}
		if err != nil {
			err.Detail = fmt.Sprintf("statement %d: %s", i, err.Detail)
			return nil, err
		}
		// Actions have no case. They are lowered here, so that requests need not do it.
		for j, a := range s.Action {
			s.Action[j] = strings.ToLower(a)
		}
	}
	return &doc, nil
}

func (s *Statement) check(bucket string) *Error {
	switch {
	case s.Effect != "Allow" && s.Effect != "Deny":
		return refuse("Invalid effect: "+s.Effect, "effect %q: want Allow or Deny", s.Effect)
	case bucket != "" && (len(s.Principal) == 0 || slices.Contains(s.Principal, "")):
		return refuse(badPrincipal, "principal is needed")
	case bucket != "" && len(s.Principal) > 1 && slices.Contains(s.Principal, "*"):
		return refuse(badPrincipal, "* beside other principals")
	case bucket == "" && len(s.Principal) != 0:
		return refuse(badPrincipal, "a user's policy has no principal")
	case len(s.Action) == 0:
		return refuse("Policy has invalid action", "action is needed")
	case len(s.Resource) == 0:
		return refuse(badResource, "resource is needed")
	}
	for _, r := range s.Resource {
		rest, ok := strings.CutPrefix(r, "arn:aws:s3:::")
		if !ok && r != "*" {
			return refuse(badResource, "resource %q: want arn:aws:s3:::bucket/key", r)
		}
		if name, _, _ := strings.Cut(rest, "/"); bucket != "" && name != bucket {
			return refuse(badResource, "resource %q is not of bucket %q", r, bucket)
		}
	}
	return s.checkConditions()
}

// Decision of a document.
type Decision int

// The decisions. Deny wins over Allow.
const (
	Silent Decision = iota
	Allow
	Deny
)

// Decide gives a document's decision; nil is silent.
func (d *Document) Decide(r Request) Decision {
	out := Silent
	if d == nil {
		return out
	}
	r.Action = strings.ToLower(r.Action)
	for i := range d.Statement {
		s := &d.Statement[i]
		if !s.applies(r) {
			continue
		}
		// Deny is final. An Allow may still be overridden by a later Deny.
		if s.Effect == "Deny" {
			return Deny
		}
		out = Allow
	}
	return out
}

func (s *Statement) applies(r Request) bool {
	if len(s.Principal) > 0 && !slices.Contains(s.Principal, "*") && !slices.Contains(s.Principal, r.User) {
		return false
	}
	if !slices.ContainsFunc(s.Action, func(p string) bool { return Like(p, r.Action) }) {
		return false
	}
	if !slices.ContainsFunc(s.Resource, func(p string) bool { return Like(p, r.Resource) }) {
		return false
	}
	for op, keys := range s.Condition {
		for k, want := range keys {
			if !holds(op, want, k, r) {
				return false
			}
		}
	}
	return true
}

// Like reports whether s matches a pattern in which * is any text and ? any one byte. It goes back
// to the last star only, so its time is bounded by the product of both lengths.
func Like(pattern, s string) bool {
	// The text before the first wildcard decides nearly always, and comparing it at once is much
	// faster than byte by byte. So is a star at the end, which matches whatever is left.
	literal := strings.IndexAny(pattern, "*?")
	if literal < 0 {
		return pattern == s
	}
	if !strings.HasPrefix(s, pattern[:literal]) {
		return false
	}
	pattern, s = pattern[literal:], s[literal:]
	if pattern == "*" {
		return true
	}
	star, mark, i, j := -1, 0, 0, 0
	for j < len(s) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, mark = i, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == s[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == '*' {
		i++
	}
	return i == len(pattern)
}
