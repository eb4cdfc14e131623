package layout

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Prefixes and fixed keys of the acceptance journal, docs/format/journal.md.
const (
	JournalPrefix = "journal/v1/"
	// JournalOpenPrefix has segment 0 of every run. It is the only prefix of the journal that polls list.
	JournalOpenPrefix = JournalPrefix + "open/"
	// JournalFoldedPrefix has the folded files.
	JournalFoldedPrefix = JournalPrefix + "folded/"
	// JournalHeadKey says how far each run is folded.
	JournalHeadKey = JournalPrefix + "head.json"
	// JournalBeginKey is the proof that the journal has every accepted batch of the authority:
	// the authority began with it, or an audit wrote what was there before.
	JournalBeginKey = JournalPrefix + "begin.json"

	// JournalRunPrefix begins the keys of the other segments of every run.
	JournalRunPrefix = JournalPrefix + "run="
	journalSuffix    = ".lmj"
)

// JournalSegment is the key of segment n of a run of the journal. Segment 0 opens the run, and
// stands under a prefix of its own, so that one LIST shows the runs and nothing else.
func JournalSegment(run [16]byte, n uint64) string {
	h := hex.EncodeToString(run[:])
	if n == 0 {
		return JournalOpenPrefix + h + journalSuffix
	}
	return JournalRunPrefix + h + "/" + fmt.Sprintf("%020d", n) + journalSuffix
}

// ParseJournalSegment reads the key of a segment.
func ParseJournalSegment(key string) (run [16]byte, n uint64, err error) {
	name, ok := strings.CutSuffix(key, journalSuffix)
	open, isOpen := strings.CutPrefix(name, JournalOpenPrefix)
	if !isOpen {
		var ok2, ok3 bool
		var digits string
		name, ok2 = strings.CutPrefix(name, JournalRunPrefix)
		open, digits, ok3 = strings.Cut(name, "/")
		if n, err = strconv.ParseUint(digits, 10, 64); !ok2 || !ok3 || err != nil {
			return run, 0, notAKey(key, "journal")
		}
	}
	if b, herr := hex.DecodeString(open); herr != nil || copy(run[:], b) != len(run) {
		return run, 0, notAKey(key, "journal")
	}
	// Rebuilt and compared, which refuses upper-case digits, other lengths and segment 0 of the second form.
	if !ok || JournalSegment(run, n) != key {
		return run, 0, notAKey(key, "journal")
	}
	return run, n, nil
}

// JournalFolded is the key of a folded file: the number of the move of the head that is to name
// it, and the folder's random id, so that several folders never write to one key.
func JournalFolded(number uint64, folder [16]byte, part int) string {
	return JournalFoldedPrefix + fmt.Sprintf("%020d-%s-%04d", number, hex.EncodeToString(folder[:]), part) + journalSuffix
}

// ParseJournalFolded reads the key of a folded file.
func ParseJournalFolded(key string) (number uint64, folder [16]byte, part int, err error) {
	name, ok := strings.CutPrefix(key, JournalFoldedPrefix)
	name, ok2 := strings.CutSuffix(name, journalSuffix)
	number, folder, part, err = parseNumbered(name)
	if !ok || !ok2 || err != nil || JournalFolded(number, folder, part) != key {
		return 0, folder, 0, notAKey(key, "journal")
	}
	return number, folder, part, nil
}

// JournalList is the key of a list of folded files, which the head names in their place.
func JournalList(number uint64, folder [16]byte) string {
	return JournalFoldedPrefix + fmt.Sprintf("%020d-%s", number, hex.EncodeToString(folder[:])) + "-list.json"
}

// ParseJournalList reads the key of a list of folded files.
func ParseJournalList(key string) (number uint64, folder [16]byte, err error) {
	name, ok := strings.CutPrefix(key, JournalFoldedPrefix)
	name, ok2 := strings.CutSuffix(name, "-list.json")
	digits, id, ok3 := strings.Cut(name, "-")
	number, err = strconv.ParseUint(digits, 10, 64)
	b, herr := hex.DecodeString(id)
	if !ok || !ok2 || !ok3 || err != nil || herr != nil || copy(folder[:], b) != len(folder) || JournalList(number, folder) != key {
		return 0, folder, notAKey(key, "journal")
	}
	return number, folder, nil
}

// LedgersPart is the key of one part of the checkpoint of all ledgers: the number of the root that is to name
// it first, and its writer's random id, so that several writers never write to one key.
func LedgersPart(number uint64, writer [16]byte, part int) string {
	return LedgersPrefix + fmt.Sprintf("%020d-%s-%04d", number, hex.EncodeToString(writer[:]), part) + ".lml"
}

// ParseLedgersPart reads the key of a part.
func ParseLedgersPart(key string) (number uint64, writer [16]byte, part int, err error) {
	name, ok := strings.CutPrefix(key, LedgersPrefix)
	name, ok2 := strings.CutSuffix(name, ".lml")
	number, writer, part, err = parseNumbered(name)
	if !ok || !ok2 || err != nil || LedgersPart(number, writer, part) != key {
		return 0, writer, 0, notAKey(key, "ledgers")
	}
	return number, writer, part, nil
}

// parseNumbered reads <number>-<id>-<part>.
func parseNumbered(name string) (number uint64, id [16]byte, part int, err error) {
	fields := strings.Split(name, "-")
	if len(fields) != 3 {
		return 0, id, 0, ErrNotAKey
	}
	number, err = strconv.ParseUint(fields[0], 10, 64)
	b, herr := hex.DecodeString(fields[1])
	part, perr := strconv.Atoi(fields[2])
	if err != nil || herr != nil || perr != nil || copy(id[:], b) != len(id) || part < 0 {
		return 0, id, 0, ErrNotAKey
	}
	return number, id, part, nil
}

// AuditPrefix has a record of every audit.
const AuditPrefix = "audit/v1/"

// Audits is the prefix of the records of all audits of a kind; it ends in a slash.
func Audits(kind string) string { return AuditPrefix + kind + "/" }

// Audit is the key of the record of an audit: its kind, when it began by the store's clock, and a random id.
func Audit(kind string, began time.Time, id [16]byte) string {
	return Audits(kind) + fmt.Sprintf("%020d-%s.json", max(0, began.Unix()), hex.EncodeToString(id[:]))
}

// ParseAudit reads the key of the record of an audit.
func ParseAudit(key string) (kind string, began time.Time, id [16]byte, err error) {
	rest, ok := strings.CutPrefix(key, AuditPrefix)
	kind, name, ok2 := strings.Cut(rest, "/")
	digits, name, ok3 := strings.Cut(name, "-")
	name, ok4 := strings.CutSuffix(name, ".json")
	seconds, err := strconv.ParseInt(digits, 10, 64)
	b, herr := hex.DecodeString(name)
	began = time.Unix(seconds, 0)
	if !ok || !ok2 || !ok3 || !ok4 || err != nil || herr != nil || copy(id[:], b) != len(id) || Audit(kind, began, id) != key {
		return "", time.Time{}, id, notAKey(key, "audit")
	}
	return kind, began, id, nil
}

// AuditShard is the key of the record of one shard of the audit whose record is under the given key.
func AuditShard(audit string, shard int) string {
	return strings.TrimSuffix(audit, ".json") + "/" + fmt.Sprintf("%04d.json", shard)
}

// ScrubKey has the record of how far the scrub is.
const ScrubKey = "reconcile/v1/scrub.json"
