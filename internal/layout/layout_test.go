package layout

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// SHA-256 of "abc".
const (
	abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	dir = "agent=686f73742f31/boot=c3a9/"
	seq = "00000000000000000007-18446744073709551615"
)

var (
	id = identity.Batch{Agent: "host/1", Boot: "é", SeqStart: 7, SeqEnd: math.MaxUint64}
	d  = identity.Sum([]byte("abc"))
	at = time.Date(2026, 11, 21, 4, 5, 6, 7, time.FixedZone("", -3600)) // 05:05:06 UTC
)

// The keys as the design and docs/format/keys.md have them.
func TestKeys(t *testing.T) {
	const mid = "01795237506000000007-"
	manifest := identity.Sum([]byte("accepted/v1/" + dir + seq + ".json")).String()[:32]
	for _, c := range []struct{ got, want string }{
		{AuthorityKey, "authority/v1/id.json"},
		{Blob(d, 0), "raw-blobs/v1/sha256/ba/78/" + abc + ".lmbatch"},
		{Blob(d, 1), "raw-blobs/v1/sha256/ba/78/" + abc + ".g1.lmbatch"},
		{Blob(d, math.MaxUint32), "raw-blobs/v1/sha256/ba/78/" + abc + ".g4294967295.lmbatch"},
		{BlobStem(d), "raw-blobs/v1/sha256/ba/78/" + abc},
		{Condemned(d, 0), "gc/v1/condemned/" + abc + ".g0.json"},
		{Condemned(d, 12), "gc/v1/condemned/" + abc + ".g12.json"},
		{CondemnedHour(timegrid.HourStarting(at)), "gc/v1/condemned/date=2026-11-21/hour=05.json"},
		{CondemnedEpoch(64), "gc/v1/condemned/epochs/00000000000000000064.json"},
		{GCStateKey, "gc/v1/state.json"},
		{OrphanReport(at, d), OrphanReportsPrefix + fmt.Sprintf("%020d-", at.UnixMilli()) + abc[:32] + ".json"},
		{BlobLog(at, d), "gc/v1/log/blobs/" + fmt.Sprintf("%020d-", at.UnixMilli()) + abc[:32] + ".json"},
		{Rewritten(timegrid.HourStarting(at), id, 3), "gc/v1/rewritten/date=2026-11-21/hour=05/" + dir + seq + ".g3.json"},
		{Boot(id.BootOf()), "boots/v1/agent=686f73742f31/boot=c3a9.json"},
		{AcceptedBoot(id.BootOf()), "accepted/v1/" + dir},
		{Accepted(id), "accepted/v1/" + dir + seq + ".json"},
		{ManifestID(at, id), mid + manifest},
		{AcceptedByTime(at, id), "accepted-by-time/v1/date=2026-11-21/hour=05/" + mid + manifest + ".json"},
		{AcceptedByTimeHour(at), "accepted-by-time/v1/date=2026-11-21/hour=05/"},
		{AcceptedByBlob(d, id), "accepted-by-blob/v1/sha256/ba/78/" + abc + "/" + dir + seq + ".json"},
		{RawBlobByTime(at, d), "raw-blobs-by-time/v1/date=2026-11-21/hour=05/sha256=" + abc + ".json"},
		{Quarantine(id, d), "quarantine/v1/identity-conflict/" + dir + seq + "/" + abc + ".json"},
		{QuarantineByBlob(d, id), "quarantine-by-blob/v1/sha256/ba/78/" + abc + "/" + dir + seq + ".json"},
		{Repair(id), "repair/v1/" + dir + seq + ".json"},
		{Affirmation(id, identity.Stamp{Epoch: 3, Fence: math.MaxUint64}), "affirmed/v1/" + dir + seq + "/00000000000000000003-18446744073709551615.json"},
		{Affirmations(id), "affirmed/v1/" + dir + seq + "/"},
		{FoldHead(id.BootOf()), "folds/v1/" + dir + "head.lmf"},
		{PreparedHead("eu-1", id.BootOf()), "prepared/v1/region=eu-1/" + dir + "head.lmf"},
		{PreparedStateKey, "prepared/v1/state.json"},
		{FoldPart(id.BootOf(), d), "folds/v1/" + dir + "part-" + abc + ".lmf"},
		{HexText("é/"), "c3a92f"},
		{SeqName(7, math.MaxUint64), seq},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

// Every parser refuses what its builder would not have written.
func TestParsersRefuse(t *testing.T) {
	blob, boot, manifest, quarantine := Blob(d, 3), Boot(id.BootOf()), Accepted(id), Quarantine(id, d)
	change := func(key, from, to string) string {
		t.Helper()
		if !strings.Contains(key, from) {
			t.Fatalf("%q is not in %q", from, key)
		}
		return strings.Replace(key, from, to, 1)
	}
	cases := map[string][]string{
		"blob": {
			"", "raw-blobs/v1/", manifest, blob + "x", "/" + blob, change(blob, "g3", "g0"), change(blob, "g3", "g03"), change(blob, "g3", "g"),
			change(blob, "g3", "g4294967296"), change(blob, "g3", "g+3"), change(blob, "/ba/", "/bb/"), change(blob, "ad.g", "AD.g"),
			change(blob, ".g3", ".g3.g3"), BlobStem(d), change(blob, "/78/", "//78"),
		},
		"boot": {
			"", boot + "/", manifest, change(boot, "agent=", "agent="+"4"), change(boot, "c3a9", "C3A9"), change(boot, "c3a9", ""), change(boot, "686f73742f31", ""),
			change(boot, "c3a9", "c3"), change(boot, "c3a9", strings.Repeat("61", 65)), change(boot, ".json", ".json.json"), change(boot, "/boot=", "/x/boot="),
		},
		"accepted": {
			"", boot, blob, manifest + ".json", change(manifest, "-1844", "-2844"), change(manifest, "00007-", "0007-"), change(manifest, "/0000", "/+000"),
			change(manifest, "/00000000000000000007", "/00000000000000000007-0"), change(manifest, ".json", ""), change(manifest, "v1", "v2"),
			AcceptedPrefix + dir + "00000000000000000008-00000000000000000007.json", AcceptedPrefix + dir + "00000000000000000000-18446744073709551615.json",
		},
		"quarantine": {
			"", manifest, QuarantinePrefix, change(quarantine, "/ba78", "/BA78"), change(quarantine, "/ba78", "/a78"), change(quarantine, ".json", ""),
			change(quarantine, seq+"/", seq+".json/"), change(quarantine, seq+"/", ""), change(quarantine, seq+"/", seq+"//"),
		},
	}
	rewritten := Rewritten(timegrid.HourStarting(at), id, 3)
	cases["rewritten"] = []string{
		"", manifest, RewrittenPrefix, change(rewritten, ".g3", ""), change(rewritten, ".g3", ".g0"), change(rewritten, ".g3", ".g03"), change(rewritten, ".g3", ".g4294967296"),
		change(rewritten, ".json", ""), change(rewritten, "hour=05", "hour=24"), change(rewritten, "hour=05/", ""), change(rewritten, seq, "7-8"),
	}
	affirmed := Affirmation(id, identity.Stamp{Epoch: 3, Fence: 12})
	cases["affirmed"] = []string{
		"", manifest, AffirmedPrefix, Affirmations(id), change(affirmed, "/00000000000000000003-", "/3-"), change(affirmed, "-00000000000000000012", "-00000000000000000012-1"), change(affirmed, "-00000000000000000012", "-+0000000000000000012"),
		change(affirmed, "0000000000003-00000000000000000012", "3-18446744073709551616"), change(affirmed, ".json", ""), change(affirmed, seq+"/", ""), change(affirmed, seq+"/", seq+"//"), change(affirmed, seq+"/", seq+".json/"), change(affirmed, "v1", "v2"),
	}
	head, part := FoldHead(id.BootOf()), FoldPart(id.BootOf(), d)
	cases["fold head"] = []string{"", manifest, FoldsPrefix, part, change(head, "head", "heads"), change(head, "/head", "//head"), change(head, ".lmf", ""), change(head, "v1", "v2"), change(head, "agent=", ""), change(head, "686f", "686F")}
	cases["fold part"] = []string{"", manifest, FoldsPrefix, head, change(part, "/part-", "//part-"), change(part, "part-", ""), change(part, "part-ba78", "part-BA78"), change(part, "part-ba", "part-"), change(part, ".lmf", ""), change(part, "v1", "v2")}
	prepared := PreparedHead("eu", id.BootOf())
	cases["prepared head"] = []string{"", manifest, PreparedPrefix, PreparedStateKey, head, change(prepared, "region=eu/", ""), change(prepared, "region=eu", "eu"), change(prepared, "eu/", "eu//"), change(prepared, "head", "part"), change(prepared, "v1", "v2"), change(prepared, "686f", "686F")}
	parse := map[string]func(string) error{
		"prepared head": func(k string) error { _, _, err := ParsePreparedHead(k); return err },
		"fold head":     func(k string) error { _, err := ParseFoldHead(k); return err },
		"fold part":     func(k string) error { _, _, err := ParseFoldPart(k); return err },
		"affirmed":      func(k string) error { _, _, err := ParseAffirmation(k); return err },
		"rewritten":     func(k string) error { _, _, _, err := ParseRewritten(k); return err },
		"blob":          func(k string) error { _, _, err := ParseBlob(k); return err },
		"boot":          func(k string) error { _, err := ParseBoot(k); return err },
		"accepted":      func(k string) error { _, err := ParseAccepted(k); return err },
		"quarantine":    func(k string) error { _, _, err := ParseQuarantine(k); return err },
	}
	for family, keys := range cases {
		for _, key := range keys {
			if err := parse[family](key); !errors.Is(err, ErrNotAKey) {
				t.Errorf("%s %q: %v", family, key, err)
			}
		}
	}
}

func drawBatch(t *rapid.T) identity.Batch {
	b := identity.Batch{
		Agent:    rapid.StringN(1, 20, identity.MaxAgentIDBytes).Draw(t, "agent"),
		Boot:     rapid.StringN(1, 16, identity.MaxBootIDBytes).Draw(t, "boot"),
		SeqStart: rapid.Uint64().Draw(t, "start"),
	}
	b.SeqEnd = rapid.Uint64Range(b.SeqStart, math.MaxUint64).Draw(t, "end")
	if b.Validate() != nil {
		b.SeqEnd--
	}
	return b
}

func TestParsersInvertBuilders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBatch(t)
		d := identity.Sum(rapid.SliceOf(rapid.Byte()).Draw(t, "frame"))
		gen := rapid.Uint32().Draw(t, "generation")
		if got, err := ParseAccepted(Accepted(b)); err != nil || got != b {
			t.Fatalf("accepted: %v, %v", got, err)
		}
		if got, err := ParseBoot(Boot(b.BootOf())); err != nil || got != b.BootOf() {
			t.Fatalf("boot: %v, %v", got, err)
		}
		if got, g, err := ParseBlob(Blob(d, gen)); err != nil || got != d || g != gen {
			t.Fatalf("blob: %v, %d, %v", got, g, err)
		}
		if got, s, err := ParseQuarantine(Quarantine(b, d)); err != nil || got != b || s != d {
			t.Fatalf("quarantine: %v, %v, %v", got, s, err)
		}
		stamp := identity.Stamp{Epoch: rapid.Uint64().Draw(t, "epoch"), Fence: rapid.Uint64().Draw(t, "fence")}
		if got, s, err := ParseAffirmation(Affirmation(b, stamp)); err != nil || got != b || s != stamp {
			t.Fatalf("affirmed: %v, %v, %v", got, s, err)
		}
		if got, err := ParseFoldHead(FoldHead(b.BootOf())); err != nil || got != b.BootOf() {
			t.Fatalf("fold head: %v, %v", got, err)
		}
		region := rapid.StringMatching("[a-z0-9-]{1,64}").Draw(t, "region")
		if r, got, err := ParsePreparedHead(PreparedHead(region, b.BootOf())); err != nil || got != b.BootOf() || r != region {
			t.Fatalf("prepared head: %v, %v, %v", r, got, err)
		}
		if got, name, err := ParseFoldPart(FoldPart(b.BootOf(), d)); err != nil || got != b.BootOf() || name != d {
			t.Fatalf("fold part: %v, %v, %v", got, name, err)
		}
		other := identity.Stamp{Epoch: rapid.Uint64Range(stamp.Epoch, math.MaxUint64).Draw(t, "later"), Fence: rapid.Uint64().Draw(t, "other")}
		if got := strings.Compare(Affirmation(b, stamp), Affirmation(b, other)); got != stamp.Compare(other) || !strings.HasPrefix(Affirmation(b, other), Affirmations(b)) {
			t.Fatalf("keys of %v and %v compare %d", stamp, other, got)
		}
		h := timegrid.HourOfNS(rapid.Int64().Draw(t, "time"))
		if at, got, g, err := ParseRewritten(Rewritten(h, b, max(gen, 1))); err != nil || at != h || got != b || g != max(gen, 1) {
			t.Fatalf("rewritten: %v, %v, %d, %v", at, got, g, err)
		}
	})
}

// A listing of one boot is in the order of identities; keys hold nothing but safe characters.
func TestKeyOrderIsSequenceOrder(t *testing.T) {
	const safe = "abcdefghijklmnopqrstuvwxyz0123456789=-./"
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawBatch(t), drawBatch(t)
		b.Agent, b.Boot = a.Agent, a.Boot
		if got := strings.Compare(Accepted(a), Accepted(b)); got != a.Compare(b) {
			t.Fatalf("keys compare %d, identities %d", got, a.Compare(b))
		}
		if !strings.HasPrefix(Accepted(a), AcceptedBoot(a.BootOf())) {
			t.Fatal("manifest outside its boot's prefix")
		}
		for _, key := range []string{Accepted(a), Boot(a.BootOf()), Quarantine(a, d), AcceptedByBlob(d, a), QuarantineByBlob(d, a), Repair(a), Affirmation(a, identity.Stamp{Epoch: 1 << 63, Fence: 7})} {
			if strings.Trim(key, safe) != "" || len(key) > 600 {
				t.Fatalf("key %q", key)
			}
		}
	})
}

// No boot's prefix holds keys of another boot.
func TestBootPrefixesAreDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SampledFrom([]string{"a", "aa", "ab", "b", "a/", "="})
		a := identity.Boot{Agent: ids.Draw(t, "agent"), Boot: ids.Draw(t, "boot")}
		b := identity.Boot{Agent: ids.Draw(t, "other agent"), Boot: ids.Draw(t, "other boot")}
		if a != b && strings.HasPrefix(AcceptedBoot(a), AcceptedBoot(b)) {
			t.Fatalf("%v lies within %v", a, b)
		}
	})
}

// Derived listings by time are in the order of time, within an hour and between hours.
func TestTimeKeysAreInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64Range(0, 4_000_000_000_000_000_000)
		times := []int64{ns.Draw(t, "a"), ns.Draw(t, "b"), ns.Draw(t, "c")}
		slices.Sort(times)
		keys := make([]string, len(times))
		for i, n := range times {
			keys[i] = AcceptedByTime(time.Unix(0, n), drawBatch(t))
		}
		if times[0] != times[1] && times[1] != times[2] && !slices.IsSorted(keys) {
			t.Fatalf("%v", keys)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, key := range []string{Accepted(id), Boot(id.BootOf()), Blob(d, 0), Blob(d, 7), Quarantine(id, d), Condemned(d, 0), Rewritten(7, id, 1), Affirmation(id, identity.Stamp{Epoch: 1, Fence: 2}), FoldHead(id.BootOf()), FoldPart(id.BootOf(), d), PreparedHead("eu", id.BootOf())} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		again := key
		if b, err := ParseAccepted(key); err == nil {
			again = Accepted(b)
			if err := b.Validate(); err != nil {
				t.Error(err)
			}
		}
		if b, err := ParseBoot(key); err == nil {
			again = Boot(b)
		}
		if d, gen, err := ParseBlob(key); err == nil {
			again = Blob(d, gen)
		}
		if b, d, err := ParseQuarantine(key); err == nil {
			again = Quarantine(b, d)
		}
		if b, s, err := ParseAffirmation(key); err == nil {
			again = Affirmation(b, s)
			if err := b.Validate(); err != nil {
				t.Error(err)
			}
		}
		if b, err := ParseFoldHead(key); err == nil {
			again = FoldHead(b)
		}
		if b, d, err := ParseFoldPart(key); err == nil {
			again = FoldPart(b, d)
		}
		if r, b, err := ParsePreparedHead(key); err == nil {
			again = PreparedHead(r, b)
		}
		if h, b, gen, err := ParseRewritten(key); err == nil {
			again = Rewritten(h, b, gen)
		}
		if again != key {
			t.Errorf("%q became %q", key, again)
		}
	})
}

// TestKeysOfABatchAreSpelled: keys that are written byte by byte, since every batch has them.
func TestKeysOfABatchAreSpelled(t *testing.T) {
	id := identity.Batch{Agent: "a/ü", Boot: "\x00b", SeqStart: 0, SeqEnd: math.MaxUint64}
	d := identity.Sum([]byte("x"))
	h := d.String()
	for got, want := range map[string]string{
		Accepted(id):     AcceptedPrefix + fmt.Sprintf("agent=%x/boot=%x/%020d-%020d.json", id.Agent, id.Boot, id.SeqStart, id.SeqEnd),
		Blob(d, 0):       RawBlobsPrefix + "sha256/" + h[:2] + "/" + h[2:4] + "/" + h + ".lmbatch",
		Blob(d, 7):       RawBlobsPrefix + "sha256/" + h[:2] + "/" + h[2:4] + "/" + h + ".g7.lmbatch",
		BlobStem(d):      RawBlobsPrefix + "sha256/" + h[:2] + "/" + h[2:4] + "/" + h,
		Condemned(d, 12): CondemnedPrefix + h + ".g12.json",
		SeqName(1, 907):  fmt.Sprintf("%020d-%020d", 1, 907),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A short key is one of three forms, each of which has one long one.
func TestShortFrameKeys(t *testing.T) {
	id, d := identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 2}, identity.Sum(nil)
	for key, short := range map[string]string{Blob(d, 0): "", Blob(d, 3): Blob(d, 3), Accepted(id): "accepted/v1/"} {
		if got := ShortFrameKey(key, id, d); got != short || LongFrameKey(got, id, d) != key || InManifest(key) != (short == "accepted/v1/") {
			t.Errorf("%s: %q, %q, %v", key, got, LongFrameKey(got, id, d), InManifest(key))
		}
	}
}
