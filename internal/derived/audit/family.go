package audit

import (
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// family is one of the two kinds of records that are listed.
type family struct {
	prefix string
	// parse reads the key: whose batch it is about, and of a conflict the hash of the frame in quarantine.
	parse func(key string) (identity.Batch, identity.Digest, error)
	// entry reads the record into an entry; an error wraps record.ErrCorrupt or record.ErrNewerVersion.
	entry func(b []byte, id identity.Batch, d identity.Digest) (e journal.Entry, authority string, err error)
	count func(*Record) *uint64
}

var acceptedFamily = family{
	prefix: layout.AcceptedPrefix,
	parse: func(key string) (identity.Batch, identity.Digest, error) {
		id, err := layout.ParseAccepted(key)
		return id, identity.Digest{}, err
	},
	entry: func(b []byte, id identity.Batch, _ identity.Digest) (journal.Entry, string, error) {
		m, err := accept.ParseManifest(b)
		if err == nil && m.Identity != id {
			err = accept.ManifestKind.Corrupt("", "it is of %s", m.Identity)
		}
		return m.Entry(journal.AuditedAccepted), m.AuthorityID, err
	},
	count: func(r *Record) *uint64 { return &r.Manifests },
}

var conflictFamily = family{
	prefix: layout.QuarantinePrefix,
	parse:  layout.ParseQuarantine,
	entry: func(b []byte, id identity.Batch, d identity.Digest) (journal.Entry, string, error) {
		c, err := accept.ParseConflictRecord(b)
		if err == nil && (c.Identity != id || c.SubmittedSHA256 != d) {
			err = accept.ConflictKind.Corrupt("", "it is of %s %s", c.Identity, c.SubmittedSHA256)
		}
		return c.Entry(), c.AuthorityID, err
	},
	count: func(r *Record) *uint64 { return &r.Conflicts },
}

// AcceptedEntry reads an identity manifest into the entry by which an audit enters it, and says of which authority it is; an
// error wraps record.ErrCorrupt or record.ErrNewerVersion.
func AcceptedEntry(b []byte, id identity.Batch) (e journal.Entry, authority string, err error) {
	return acceptedFamily.entry(b, id, identity.Digest{})
}

// families in the order of their keys.
func families() []*family { return []*family{&acceptedFamily, &conflictFamily} }

// start lies before all keys of the agents from the given one on; "" is the first.
func (f *family) start(agent string) string {
	if agent == "" {
		return f.prefix
	}
	return layout.OfAgent(f.prefix, agent)
}

// end lies after all keys of the agents before the given one; "" is none.
func (f *family) end(agent string) string {
	if agent == "" {
		return prefixEnd(f.prefix)
	}
	return layout.OfAgent(f.prefix, agent)
}

// prefixEnd is greater than every key of the prefix, which ends in a slash.
func prefixEnd(prefix string) string { return prefix[:len(prefix)-1] + "0" }

// agentAt is the agent of a cursor in the family; empty where it has none.
func (f *family) agentAt(cursor string) string {
	rest, ok := strings.CutPrefix(cursor, f.prefix)
	dir, _, ok2 := strings.Cut(rest, "/")
	agent, err := layout.ParseOfAgent(f.prefix, f.prefix+dir+"/")
	if !ok || !ok2 || err != nil {
		return ""
	}
	return agent
}
