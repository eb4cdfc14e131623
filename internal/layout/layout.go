// Package layout builds and parses every object key. It is pure: no other
// package concatenates a key. Keys are relative to the authority's prefix, which
// the store adds (objstore.WithPrefix).
//
// Untrusted text (agent and boot ids) is written as lower-case hex of its UTF-8 bytes, so it
// can't contain a slash. Sequence numbers have 20 decimal digits, so key order is sequence
// order. Every parser rebuilds the key and compares: one object has exactly one key.
package layout

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Prefixes of the key families.
const (
	AcceptedPrefix         = "accepted/v1/"
	AcceptedByTimePrefix   = "accepted-by-time/v1/"
	AcceptedByBlobPrefix   = "accepted-by-blob/v1/"
	RawBlobsPrefix         = "raw-blobs/v1/"
	RawBlobsByTimePrefix   = "raw-blobs-by-time/v1/"
	BootsPrefix            = "boots/v1/"
	CondemnedPrefix        = "gc/v1/condemned/"
	RewrittenPrefix        = "gc/v1/rewritten/"
	QuarantinePrefix       = "quarantine/v1/identity-conflict/"
	ClashPrefix            = "quarantine/v1/boot-clash/"
	QuarantineByBlobPrefix = "quarantine-by-blob/v1/"
	ReconcilePrefix        = "reconcile/v1/"
	RepairPrefix           = "repair/v1/"
	RepairConflictsPrefix  = RepairPrefix + "identity-conflict/" // of quarantined frames
	ProbePrefix            = "probe/v1/"
	// AuthorityKey is the id object of the acceptance authority.
	AuthorityKey = "authority/v1/id.json"
	// LedgersKey is the root of the checkpoint of the ledgers of all boots.
	LedgersKey = ReconcilePrefix + "ledgers.json"
	// LedgersPrefix has the parts of that checkpoint.
	LedgersPrefix = ReconcilePrefix + "ledgers/"
	// RegionsKey has the epoch of the identity linearizer, and its regions.
	RegionsKey = "regions/v1/epoch.json"
	// CoordinatorTermKey has the number of the last term of a leading coordinator.
	CoordinatorTermKey = "coordinator/v1/term.json"
)

// ErrNotAKey is wrapped by every error of a parser of keys.
var ErrNotAKey = errors.New("not a key of this family")

// Blob is the key of generation gen of the frame d.
func Blob(d identity.Digest, gen uint32) string {
	return string(append(appendBlobStem(make([]byte, 0, 128), d), blobSuffix(gen)...))
}

// InManifest reports whether a frame's key is that of an identity manifest, which carries the frame.
func InManifest(key string) bool { return strings.HasPrefix(key, AcceptedPrefix) }

// ShortFrameKey is the key of a batch's frame as rows of plans and deltas have it, in which the identity and the hash
// stand beside it: "" for generation 0 of the blob, and AcceptedPrefix alone for the manifest.
func ShortFrameKey(key string, id identity.Batch, d identity.Digest) string {
	switch {
	case key == Blob(d, 0):
		return ""
	case InManifest(key) && key == Accepted(id):
		return AcceptedPrefix
	}
	return key
}

// LongFrameKey is what ShortFrameKey has shortened.
func LongFrameKey(short string, id identity.Batch, d identity.Digest) string {
	switch short {
	case "":
		return Blob(d, 0)
	case AcceptedPrefix:
		return Accepted(id)
	}
	return short
}

// BlobStem is the prefix of all generations of d.
func BlobStem(d identity.Digest) string {
	return string(appendBlobStem(make([]byte, 0, 128), d))
}

func appendBlobStem(b []byte, d identity.Digest) []byte {
	b = hex.AppendEncode(append(b, RawBlobsPrefix+"sha256/"...), d[:1])
	b = hex.AppendEncode(append(b, '/'), d[1:2])
	return hex.AppendEncode(append(b, '/'), d[:])
}

func blobSuffix(gen uint32) string {
	if gen == 0 {
		return ".lmbatch"
	}
	return ".g" + strconv.FormatUint(uint64(gen), 10) + ".lmbatch"
}

// ParseBlob reads a blob key.
func ParseBlob(key string) (identity.Digest, uint32, error) {
	rest, ok := strings.CutPrefix(key, RawBlobsPrefix+"sha256/")
	if !ok || len(rest) < 6+64 {
		return identity.Digest{}, 0, notAKey(key, "raw-blobs")
	}
	d, err := identity.ParseDigest(rest[6 : 6+64])
	if err != nil {
		return d, 0, notAKey(key, "raw-blobs")
	}
	var gen uint64
	if suffix := rest[6+64:]; suffix != ".lmbatch" {
		n, ok := strings.CutPrefix(suffix, ".g")
		if n, ok2 := strings.CutSuffix(n, ".lmbatch"); ok && ok2 {
			gen, err = strconv.ParseUint(n, 10, 32)
		} else {
			err = ErrNotAKey
		}
	}
	// The key is rebuilt and compared, which refuses generation 0 as ".g0" and leading zeros.
	if err != nil || Blob(d, uint32(gen)) != key {
		return d, 0, notAKey(key, "raw-blobs")
	}
	return d, uint32(gen), nil
}

// Boot is the key of the record of a boot's first use.
func Boot(b identity.Boot) string {
	return BootsPrefix + "agent=" + hexText(b.Agent) + "/boot=" + hexText(b.Boot) + ".json"
}

// ParseBoot reads a boots key.
func ParseBoot(key string) (identity.Boot, error) {
	rest, ok := strings.CutPrefix(key, BootsPrefix)
	rest, ok2 := strings.CutSuffix(rest, ".json")
	if !ok || !ok2 {
		return identity.Boot{}, notAKey(key, "boots")
	}
	b, tail, err := parseBootDir(rest + "/")
	if err != nil || tail != "" || Boot(b) != key {
		return identity.Boot{}, notAKey(key, "boots")
	}
	return b, nil
}

// AcceptedBoot is the prefix of all identity manifests of a boot; it ends in a slash.
func AcceptedBoot(b identity.Boot) string { return OfBoot(AcceptedPrefix, b) }

// OfAgent is the prefix of everything of an agent under AcceptedPrefix, QuarantinePrefix or BootsPrefix; it ends in a
// slash. These prefixes are in the order of the agents' bytes.
func OfAgent(prefix, agent string) string { return prefix + "agent=" + hexText(agent) + "/" }

// ParseOfAgent reads what OfAgent writes.
func ParseOfAgent(prefix, key string) (agent string, err error) {
	rest, ok := strings.CutPrefix(key, prefix+"agent=")
	b, herr := hex.DecodeString(strings.TrimSuffix(rest, "/"))
	if agent = string(b); !ok || herr != nil || OfAgent(prefix, agent) != key {
		return "", notAKey(key, "accepted")
	}
	return agent, nil
}

// OfBoot is the prefix of everything of a boot under AcceptedPrefix, AffirmedPrefix or QuarantinePrefix; it ends in a slash.
func OfBoot(prefix string, b identity.Boot) string { return prefix + bootDir(b) }

// BootFrom lies before the keys of a boot under AcceptedPrefix, AffirmedPrefix or QuarantinePrefix whose batches begin at seq or
// later, and after the others of the boot.
func BootFrom(prefix string, b identity.Boot, seq uint64) string {
	return prefix + bootDir(b) + fmt.Sprintf("%020d", seq)
}

// BootEnd lies after all keys of a boot under the prefix, and before those of the next one.
func BootEnd(prefix string, b identity.Boot) string {
	return strings.TrimSuffix(prefix+bootDir(b), "/") + "0"
}

// Accepted is the key of the identity manifest.
func Accepted(id identity.Batch) string {
	return string(appendIdentityPath(append(make([]byte, 0, 256), AcceptedPrefix...), id))
}

// ParseAccepted reads the identity from an identity manifest's key.
func ParseAccepted(key string) (identity.Batch, error) {
	rest, ok := strings.CutPrefix(key, AcceptedPrefix)
	if !ok {
		return identity.Batch{}, notAKey(key, "accepted")
	}
	id, err := parseIdentityPath(rest)
	if err != nil || Accepted(id) != key {
		return identity.Batch{}, notAKey(key, "accepted")
	}
	return id, nil
}

// ManifestID names an identity manifest in time-ordered listings: the time of
// acceptance as 20 digits, then half of the hash of the manifest's key. It depends only on the manifest.
func ManifestID(acceptedAt time.Time, id identity.Batch) string {
	h := identity.Sum([]byte(Accepted(id)))
	return fmt.Sprintf("%020d-%s", acceptedAt.UnixNano(), hex.EncodeToString(h[:16]))
}

// AcceptedByTime is the derived key by the hour of acceptance.
func AcceptedByTime(acceptedAt time.Time, id identity.Batch) string {
	return AcceptedByTimeHour(acceptedAt) + ManifestID(acceptedAt, id) + ".json"
}

// AcceptedByTimeHour is the prefix of one hour; it ends in a slash.
func AcceptedByTimeHour(t time.Time) string { return AcceptedByTimePrefix + hourDir(t) }

// AcceptedByBlob is the derived reverse reference of an accepted frame.
func AcceptedByBlob(d identity.Digest, id identity.Batch) string {
	return AcceptedByBlobPrefix + digestDir(d) + identityPath(id)
}

// RawBlobByTime is the derived key of a blob by the hour of acceptance.
func RawBlobByTime(t time.Time, d identity.Digest) string {
	return RawBlobsByTimePrefix + hourDir(t) + "sha256=" + d.String() + ".json"
}

// Quarantine is the key of the record of a submitted frame that lost a conflict.
func Quarantine(id identity.Batch, submitted identity.Digest) string {
	return QuarantinePrefix + strings.TrimSuffix(identityPath(id), ".json") + "/" + submitted.String() + ".json"
}

// ParseQuarantine reads a quarantine key.
func ParseQuarantine(key string) (identity.Batch, identity.Digest, error) {
	rest, ok := strings.CutPrefix(key, QuarantinePrefix)
	i := strings.LastIndexByte(rest, '/')
	name, ok2 := strings.CutSuffix(rest[max(i, 0):], ".json")
	if !ok || !ok2 || i < 0 {
		return identity.Batch{}, identity.Digest{}, notAKey(key, "quarantine")
	}
	id, err := parseIdentityPath(rest[:i] + ".json")
	if err != nil {
		return identity.Batch{}, identity.Digest{}, notAKey(key, "quarantine")
	}
	d, err := identity.ParseDigest(name[1:])
	if err != nil || Quarantine(id, d) != key {
		return identity.Batch{}, identity.Digest{}, notAKey(key, "quarantine")
	}
	return id, d, nil
}

// QuarantineByBlob is the derived reverse reference of a quarantined frame.
func QuarantineByBlob(d identity.Digest, id identity.Batch) string {
	return QuarantineByBlobPrefix + digestDir(d) + identityPath(id)
}

// Repair is the key of the operator-visible record of a missing or corrupt blob.
func Repair(id identity.Batch) string { return RepairPrefix + identityPath(id) }

// RepairQuarantine is the same for a quarantined frame.
func RepairQuarantine(id identity.Batch, submitted identity.Digest) string {
	return RepairPrefix + strings.TrimPrefix(Quarantine(id, submitted), "quarantine/v1/")
}

// HexText is the encoding of untrusted text in keys and in local file names.
func HexText(s string) string { return hexText(s) }

// SeqName is "<start>-<end>" with 20 digits each, for keys and local file names.
func SeqName(start, end uint64) string {
	return string(appendSeqName(make([]byte, 0, 2*seqDigits+1), start, end))
}

// seqDigits is the width of a sequence number: that of the largest one.
const seqDigits = 20

func appendSeqName(b []byte, start, end uint64) []byte {
	return appendSeq(append(appendSeq(b, start), '-'), end)
}

func appendSeq(b []byte, n uint64) []byte {
	const zeros = "00000000000000000000"
	from := len(b)
	b = append(b, zeros...)
	for i := len(b) - 1; i >= from && n > 0; i-- {
		b[i], n = byte('0'+n%10), n/10
	}
	return b
}

func hexText(s string) string { return hex.EncodeToString([]byte(s)) }

func hourDir(t time.Time) string { return string(appendHourDir(make([]byte, 0, 32), t)) }

func appendHourDir(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(b, "date=2006-01-02/hour=15/")
	}
	b = append(b, "date="...)
	b = appendDigits(b, uint64(year), 4)
	b = append(b, '-')
	b = appendDigits(b, uint64(month), 2)
	b = append(b, '-')
	b = appendDigits(b, uint64(day), 2)
	b = append(b, "/hour="...)
	b = appendDigits(b, uint64(t.Hour()), 2)
	return append(b, '/')
}

// appendDigits appends n in decimal with at least the given number of digits.
func appendDigits(b []byte, n uint64, least int) []byte {
	var digits [20]byte
	i := len(digits)
	for ; n > 0 || least > 0; least-- {
		i--
		digits[i] = '0' + byte(n%10)
		n /= 10
	}
	return append(b, digits[i:]...)
}

func digestDir(d identity.Digest) string {
	h := d.String()
	return "sha256/" + h[0:2] + "/" + h[2:4] + "/" + h + "/"
}

func bootDir(b identity.Boot) string {
	return string(appendBootDir(make([]byte, 0, 128), b))
}

func appendBootDir(b []byte, boot identity.Boot) []byte {
	b = appendHexText(append(b, "agent="...), boot.Agent)
	b = appendHexText(append(b, "/boot="...), boot.Boot)
	return append(b, '/')
}

func appendHexText(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	for i := range len(s) {
		b = append(b, digits[s[i]>>4], digits[s[i]&15])
	}
	return b
}

func identityPath(id identity.Batch) string {
	return string(appendIdentityPath(make([]byte, 0, 256), id))
}

func appendIdentityPath(b []byte, id identity.Batch) []byte {
	return append(appendSeqName(appendBootDir(b, id.BootOf()), id.SeqStart, id.SeqEnd), ".json"...)
}

func parseBootDir(s string) (identity.Boot, string, error) {
	var b identity.Boot
	agent, rest, ok := strings.Cut(s, "/")
	boot, rest, ok2 := strings.Cut(rest, "/")
	agent, ok3 := strings.CutPrefix(agent, "agent=")
	boot, ok4 := strings.CutPrefix(boot, "boot=")
	if !ok || !ok2 || !ok3 || !ok4 {
		return b, "", ErrNotAKey
	}
	a, err := hex.DecodeString(agent)
	if err != nil {
		return b, "", ErrNotAKey
	}
	o, err := hex.DecodeString(boot)
	if err != nil {
		return b, "", ErrNotAKey
	}
	b = identity.Boot{Agent: string(a), Boot: string(o)}
	return b, rest, b.Validate()
}

func parseIdentityPath(s string) (identity.Batch, error) {
	b, rest, err := parseBootDir(s)
	if err != nil {
		return identity.Batch{}, err
	}
	name, ok := strings.CutSuffix(rest, ".json")
	first, last, ok2 := strings.Cut(name, "-")
	// Numbers of another length would not sort in the order in which they count.
	if !ok || !ok2 || len(first) != 20 || len(last) != 20 {
		return identity.Batch{}, ErrNotAKey
	}
	start, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return identity.Batch{}, ErrNotAKey
	}
	end, err := strconv.ParseUint(last, 10, 64)
	if err != nil {
		return identity.Batch{}, ErrNotAKey
	}
	id := identity.Batch{Agent: b.Agent, Boot: b.Boot, SeqStart: start, SeqEnd: end}
	return id, id.Validate()
}

func notAKey(key, family string) error {
	return fmt.Errorf("parse %s key %q: %w", family, key, ErrNotAKey)
}
