package bucketpolicy

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// TestRulesLeaveGrants: nothing that a role needs is refused to it by the bucket. A put is needed
// nowhere that creates or replaces alone are allowed.
func TestRulesLeaveGrants(t *testing.T) {
	for _, role := range Roles {
		for _, family := range Families {
			key := Probe(family)
			for _, op := range Ops {
				if May([]Role{role}, op, key) && Denied([]Role{role}, op, key) {
					t.Errorf("%s: %s of %s is granted and denied", role, op, family)
				}
			}
		}
	}
}

// TestGrantsAreOfFamilies: the table of who may do what has a line for every key that is granted.
func TestGrantsAreOfFamilies(t *testing.T) {
	for role, gs := range grants {
		if !slices.Contains(Roles, role) {
			t.Errorf("%s is none of the roles", role)
		}
		for _, g := range gs {
			for _, k := range g.Keys {
				if !slices.ContainsFunc(Families, func(f string) bool { return strings.HasPrefix(f, k) }) {
					t.Errorf("%s: %q covers no family", role, k)
				}
			}
			if g.Why == "" || g.Ops == 0 {
				t.Errorf("%s: %+v", role, g)
			}
		}
	}
}

// TestEveryKeyHasAFamily: docs/format/keys.md lists every key, and whoever adds one finds here that it
// needs a line in the table.
func TestEveryKeyHasAFamily(t *testing.T) {
	text, err := os.ReadFile("../../../docs/format/keys.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(string(text), -1)
	if len(keys) < 30 {
		t.Fatalf("%d keys", len(keys))
	}
	for _, k := range keys {
		if !under(k[1], Families) {
			t.Errorf("%s has no family", k[1])
		}
	}
}

// TestCoordinatorsMayTrace: a coordinator with the least that it needs can list and read what "lmctl identity
// trace" shows, in every region.
func TestCoordinatorsMayTrace(t *testing.T) {
	prefixes := []string{layout.AcceptedPrefix, layout.AffirmedPrefix, layout.QuarantinePrefix, layout.FoldsPrefix, layout.JournalOpenPrefix, layout.JournalRunPrefix, layout.JournalFoldedPrefix}
	if !May([]Role{Coordinator}, Get, layout.AuthorityKey) || !May([]Role{Coordinator}, Get, layout.JournalHeadKey) || !May([]Role{Coordinator}, Get, layout.JournalBeginKey) {
		t.Error("it can't read whose journal it is, or its head")
	}
	for _, prefix := range prefixes {
		for _, op := range []Op{List, Get} {
			if !May([]Role{Coordinator}, op, Probe(prefix)) {
				t.Errorf("no %s of %s", op, prefix)
			}
		}
	}
}

// TestAffirmationsAreRead: who writes affirmations also reads one that is said to exist.
func TestAffirmationsAreRead(t *testing.T) {
	for _, r := range Roles {
		if key := Probe(layout.AffirmedPrefix); May([]Role{r}, Create, key) && !May([]Role{r}, Get, key) {
			t.Errorf("%s creates %s, and can't read it", r, key)
		}
	}
}

// TestPoliciesFit: AWS takes 20 KiB of a bucket's policy, and 10,240 characters of a role's inline
// policies, white space not counted. Those of the embedded store's users are in its settings, and have the bucket's rules too.
func TestPoliciesFit(t *testing.T) {
	long := strings.Repeat("b", 63)
	for _, p := range Providers {
		o := Options{Provider: p, Bucket: long, Prefix: "production/", Principals: map[Role][]string{}}
		for _, r := range Roles {
			o.Principals[r] = []string{"arn:aws:iam::123456789012:role/lightmetrics-" + string(r)}
		}
		b, err := Bucket(o)
		if err != nil || !json.Valid(b) || p.Identity && len(b) > 20<<10 {
			t.Errorf("%s: %v, %d bytes", p.Name, err, len(b))
		}
		for _, r := range Roles {
			b, err := User(o, r)
			if n := len(strings.Join(strings.Fields(string(b)), "")); err != nil || !json.Valid(b) || n > 10_240 && p.Name != "embedded" || n > 20<<10 {
				t.Errorf("%s, %s: %v, %d characters", p.Name, r, err, n)
			}
		}
	}
}

// TestPrincipalsAreNamed: a bucket's policy without reconcilers, of unknown roles or with wildcards is refused.
func TestPrincipalsAreNamed(t *testing.T) {
	const arn = "arn:aws:iam::1:role/r"
	for what, o := range map[string]Options{
		"nobody":        {Bucket: "b"},
		"other role":    {Bucket: "b", Principals: map[Role][]string{Reconciler: {arn}, "cook": {arn}}},
		"wildcard":      {Bucket: "b", Principals: map[Role][]string{Reconciler: {"arn:*"}}},
		"no ARN":        {Bucket: "b", Principals: map[Role][]string{Reconciler: {"r"}}},
		"no TLS":        {Bucket: "b", Principals: map[Role][]string{Reconciler: {arn}}, TLSOnly: true},
		"bad prefix":    {Bucket: "b", Prefix: "p", Principals: map[Role][]string{Reconciler: {arn}}},
		"bucket's name": {Bucket: "b*", Principals: map[Role][]string{Reconciler: {arn}}},
	} {
		if b, err := Bucket(o); err == nil {
			t.Errorf("%s: %s", what, b)
		}
	}
	if _, err := User(Options{Bucket: "b"}); err == nil {
		t.Error("no role")
	}
	if _, err := User(Options{Bucket: "b"}, "cook"); err == nil {
		t.Error("an unknown role")
	}
}

// TestPutsHaveTheirConditions: of AWS, who may only create is allowed no write without If-None-Match,
// and multipart parts, which carry none, are exempted from the bucket's rule.
func TestPutsHaveTheirConditions(t *testing.T) {
	aws, err := ProviderOf("aws")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Provider: aws, Bucket: "b", Principals: map[Role][]string{Reconciler: {"arn:aws:iam::1:role/r"}}, TLSOnly: true, Encryption: "aws:kms"}
	user, err := User(o, Ingest)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := Bucket(o)
	if err != nil {
		t.Fatal(err)
	}
	type document struct {
		Statement []struct {
			Sid, Effect string
			Action      []string
			Resource    []string
			Condition   condition
		}
	}
	var u, b document
	if json.Unmarshal(user, &u) != nil || json.Unmarshal(bucket, &b) != nil {
		t.Fatal("no JSON")
	}
	for _, s := range u.Statement {
		if slices.Contains(s.Action, "s3:PutObject") && s.Condition == nil && !slices.Equal(s.Resource, []string{"arn:aws:s3:::b/probe/v1/*"}) {
			t.Errorf("%s allows puts without a condition of %v", s.Sid, s.Resource)
		}
	}
	sids := map[string]bool{}
	for _, s := range b.Statement {
		sids[s.Sid] = true
		if s.Sid == "AcceptanceIsOnlyCreated" && (s.Condition["Bool"]["s3:ObjectCreationOperation"] == nil || s.Condition["Null"]["s3:if-none-match"] == nil) {
			t.Errorf("%+v", s)
		}
		if s.Effect != "Deny" {
			t.Errorf("%s: %s", s.Sid, s.Effect)
		}
	}
	for _, want := range []string{"AcceptanceIsOnlyCreatedNotCopied", "OnlyOverTLS", "OnlyThisEncryption", "OnlyCollectorsOfGarbageDeleteFrames"} {
		if !sids[want] {
			t.Errorf("no %s", want)
		}
	}
}

// TestEveryRefusalIsMade: a rule that refuses several kinds of requests makes a statement for each of them, and one that no
// statement can be made for is no rule without effect.
func TestEveryRefusalIsMade(t *testing.T) {
	aws, err := ProviderOf("aws")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Provider: aws, Bucket: "b"}
	made := func(deny Op) (out []string, refused bool) {
		defer func() { refused = recover() != nil }()
		for _, s := range o.deny(rule{sid: "Rule", keys: []string{"k/"}, deny: deny}) {
			out = append(out, s.Sid+" "+s.Action[0]+" "+strings.Join(slices.Sorted(maps.Keys(s.Condition["Null"])), "+"))
		}
		return out, false
	}
	const none, match = "s3:if-none-match", "s3:if-match+s3:if-none-match"
	want := map[Op][]string{
		Delete:                          {"Rule s3:DeleteObject "},
		Put:                             {"Rule s3:PutObject " + match},
		Put | Replace:                   {"Rule s3:PutObject " + none},
		Put | Replace | Create:          {"Rule s3:PutObject "},
		Put | Delete:                    {"RuleNotDeleted s3:DeleteObject ", "Rule s3:PutObject " + match},
		Put | Replace | Delete:          {"RuleNotDeleted s3:DeleteObject ", "Rule s3:PutObject " + none},
		Put | Replace | Create | Delete: {"RuleNotDeleted s3:DeleteObject ", "Rule s3:PutObject "},
	}
	for deny := Op(1); deny < 1<<len(Ops); deny++ {
		got, refused := made(deny)
		if w := want[deny]; refused != (w == nil) || !refused && !slices.Equal(got, w) {
			t.Errorf("%b: %q, refused %v", deny, got, refused)
		}
	}
	for _, r := range rules {
		if want[r.deny] == nil {
			t.Errorf("%s: nothing is made for %b", r.sid, r.deny)
		}
	}
}
