// Package record has the form that all stored JSON records share: one canonical dialect, one
// error for corrupt records, one rule for records of newer releases.
// docs/format/records.md is the specification, with test vectors for other languages.
//
// A record is a JSON object that begins with its schema, "lightmetrics.<name>.v<version>".
// One value has one byte string, so records can be compared, hashed and created
// conditionally by their bytes. Strings are escaped as by RFC 8785, which is what
// JSON.stringify and Python's json.dumps with ensure_ascii=False write.
//
// Most records are Go structs that Kind.Marshal and Kind.Unmarshal translate by reflection.
// Writer and Reader do the same field by field, for records that are written per batch.
package record

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// ErrCorrupt is wrapped by every error about a record that no release would have written in this form.
var ErrCorrupt = errors.New("corrupt record")

// ErrNewerVersion is wrapped by every error about a record of a later release: of a higher
// version, or with a field that this release must not ignore. It never wraps ErrCorrupt,
// because such a record must not be repaired, replaced or skipped: only a release that knows it may.
var ErrNewerVersion = errors.New("record was written by a newer release")

// Error says which record can't be read, and why.
type Error struct {
	// Kind in words, such as "identity manifest".
	Kind string
	// Key of the object or file; empty where the parser was given bytes alone.
	Key    string
	Reason string
	// Err is ErrCorrupt or ErrNewerVersion.
	Err error
	// Cause is the error of the store or of a package, if there was one.
	Cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Kind)
	if e.Key != "" {
		fmt.Fprintf(&b, " %.1100q", e.Key)
	}
	fmt.Fprintf(&b, ": %v: %s", e.Err, e.Reason)
	return b.String()
}

// Unwrap returns the sentinel and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// Unreadable reports whether err says that an object exists and is no valid record: it is
// corrupt, longer than its kind allows, or damaged at rest. Another attempt fails as well. A
// record of a newer release is not unreadable.
func Unreadable(err error) bool {
	if err == nil || errors.Is(err, ErrNewerVersion) {
		return false
	}
	return errors.Is(err, ErrCorrupt) || objstore.Unreadable(err)
}

// Opaque reports whether err says that a record exists whose content this release can't use: it
// is unreadable, or of a newer release. Code that only reads checks Opaque, reports the record and
// continues. Code that repairs, replaces or deletes checks Unreadable.
func Opaque(err error) bool { return errors.Is(err, ErrNewerVersion) || Unreadable(err) }

// Kind is one kind of record. The packages that own the records have their kinds as package variables.
type Kind struct {
	// Schema with the version that this release writes, such as "lightmetrics.accepted_batch.v1".
	Schema string
	// Title is the kind in words, for errors.
	Title string
	// MaxBytes bounds the record; a reader refuses longer ones unread.
	MaxBytes int
	// Exact kinds refuse fields that this release does not know, with ErrNewerVersion. They are
	// kinds whose bytes are hashed into a name, or which describe work: a reader that ignored a
	// part would do something else. Readers of other kinds ignore unknown fields after the known
	// ones, and drop them when they rewrite the record.
	Exact bool
}

// Corrupt makes the error that the record under key (or "") is corrupt, with the reason.
func (k Kind) Corrupt(key, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: k.Title, Key: key, Reason: err.Error(), Err: ErrCorrupt, Cause: errors.Unwrap(err)}
}

// Wrap turns err, a fault of a record's content, into an error of this kind under key. An
// *Error keeps its reason and gets the key if it has none. nil stays nil.
func (k Kind) Wrap(key string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Kind: k.Title, Key: key, Reason: err.Error(), Err: ErrCorrupt, Cause: err}
	}
	if e.Key != "" || key == "" {
		return err
	}
	at := *e
	at.Key = key
	return &at
}

// Is reports whether err is about a record of this kind.
func (k Kind) Is(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k.Title
}

func (k Kind) newer(format string, args ...any) error {
	return &Error{Kind: k.Title, Reason: fmt.Sprintf(format, args...), Err: ErrNewerVersion}
}

// checkSchema compares the schema of a record with the kind's.
func (k Kind) checkSchema(got string) error {
	if got == k.Schema {
		return nil
	}
	name, version, ok := splitSchema(got)
	want, known, _ := splitSchema(k.Schema)
	// An older version is corrupt as well: each kind has only one version so far, and a release that
	// reads several has several kinds.
	if !ok || name != want || version <= known {
		return k.Corrupt("", "schema is %.64q, want %q", got, k.Schema)
	}
	return k.newer("it has the schema %s, this release reads up to version %d: upgrade this program", got, known)
}

// CheckFormat compares the version in the magic of a file that is not JSON with the one that
// this release writes.
func (k Kind) CheckFormat(got, known byte) error {
	switch {
	case got > known:
		return k.newer("it has version %d of its format, this release reads up to %d: upgrade this program", got, known)
	case got < known:
		return k.Corrupt("", "version %d of its format, want %d", got, known)
	}
	return nil
}

// splitSchema cuts "lightmetrics.x.v2" into the name and the version.
func splitSchema(s string) (name string, version uint64, ok bool) {
	at := strings.LastIndex(s, ".v")
	if at < 0 {
		return "", 0, false
	}
	version, err := strconv.ParseUint(s[at+2:], 10, 32)
	return s[:at], version, err == nil && version > 0 && s[at+2:] == strconv.FormatUint(version, 10)
}

// SchemaOf reads the schema that a record begins with, for keys that hold records of several kinds.
// It is "" if b does not begin like a record.
func SchemaOf(b []byte) string {
	rest, ok := strings.CutPrefix(string(b[:min(len(b), maxHeadBytes)]), head)
	if !ok {
		return ""
	}
	s, _, _ := strings.Cut(rest, `"`)
	return s
}

// OneOf returns the kind of the record b, for keys that hold records of several kinds.
// Errors are those of the first kind.
func OneOf(b []byte, kinds ...Kind) (Kind, error) {
	schema := SchemaOf(b)
	for _, k := range kinds {
		if k.Schema == schema {
			return k, nil
		}
	}
	for _, k := range kinds {
		if err := k.checkSchema(schema); errors.Is(err, ErrNewerVersion) {
			return Kind{}, err
		}
	}
	return Kind{}, kinds[0].Corrupt("", "schema is %.64q", schema)
}

// head begins every record. Schemas end within maxHeadBytes.
const (
	head         = `{"schema":"`
	maxHeadBytes = 256
)
