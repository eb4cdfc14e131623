package publish_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutant is a bug that the schedules must find: old becomes new when it is chosen.
type mutant struct {
	name string
	// seed to start from: near one that found it, so that this is quick.
	seed uint64
	// finds are the first words of violations that may find it, or the test that fails.
	finds    string
	file     string
	old, new string
}

// mutants are compiled into one binary; the variable mutant chooses one.
var mutants = []mutant{
	{"no-abort", 259, "missing", "collect.go", `rec, err := x.c.abort(ctx, n, "collected")`,
		`if mutant == "no-abort" { return dead, nil }; rec, err := x.c.abort(ctx, n, "collected")`},
	{"abort-unread", 0, "TestAbortGivesWhatDecided", "abort.go", "	if err == nil {\n		return a, nil",
		"	if err == nil || mutant == \"abort-unread\" {\n		return a, nil"},
	{"condemn-without-compare", 0, "TestAReferenceThatComesInBetween", "collect.go", `if slices.Contains(changed, rec.Key) {`,
		`if slices.Contains(changed, rec.Key) && mutant != "condemn-without-compare" {`},
	{"delete-without-condemning", 20, "missing", "collect.go", `changed, err := x.c.cfg.Refs.Condemn(ctx, x.epoch.Token(), next...)`,
		`if mutant == "delete-without-condemning" { return append(condemned, KeysOf(next)...), later, nil }
	changed, err := x.c.cfg.Refs.Condemn(ctx, x.epoch.Token(), next...)`},
	{"no-references", 16, "missing end", "prepare.go", `		if len(add) == 0 {`, `		if len(add) == 0 || mutant == "no-references" {`},
	{"references-unknown-is-done", 1800, "missing end", "prepare.go", `		case err != nil:
			return of[0].named(err)`, `		case err != nil && mutant != "references-unknown-is-done":
			return of[0].named(err)`},
	{"condemned-is-passed-over", 1, "missing end", "prepare.go", `if err := replaceCondemned(ctx, add, of, condemned.Keys); err != nil {`,
		`if mutant == "condemned-is-passed-over" { for i, t := range of { t.referred(add[i].Keys) } } else if err := replaceCondemned(ctx, add, of, condemned.Keys); err != nil {`},
	{"exists-is-right", 1, "missing", "prepare.go", `			if why != "" {`, `			if why != "" && mutant != "exists-is-right" {`},
	{"object-unknown-is-created", 1, "missing", "prepare.go", `		case err != nil:
			return err
		default:
			t.p.cfg.Events.objectCreated`, `		case err != nil && mutant != "object-unknown-is-created":
			return err
		default:
			t.p.cfg.Events.objectCreated`},
	{"commit-unread", 1, "answer", "publisher.go", `	if err == nil {
		return &Result{Block: t.block, Created: true}, nil`, `	if err == nil || mutant == "commit-unread" {
		return &Result{Block: t.block, Created: true}, nil`},
	{"absent-is-aborted", 1, "answer", "publisher.go", `	case r != nil:
		r.Created`, `	case r == nil && e == nil && mutant == "absent-is-aborted":
		return nil, ErrAborted
	case r != nil:
		r.Created`},
	{"order-unchecked", 180, "order fence", "publisher.go", `	if err := t.checkOrder(ctx); err != nil {`, `	if err := t.checkOrder(ctx); err != nil && mutant != "order-unchecked" {`},
	{"fence-unchecked", 180, "fence", "publisher.go", `if fence > t.pub.Fence {`, `if fence > t.pub.Fence && mutant != "fence-unchecked" {`},
	{"highest-is-removed", 1, "superseded", "collector.go", `	if by == 0 {`, `	if by == 0 && mutant != "highest-is-removed" {`},
	{"aborted-supersedes", 1, "superseded", "record.go", `		if err != nil || st.Committed > 0 {`, `		if mutant == "aborted-supersedes" {
			st.Committed = above.Top()
		}
		if err != nil || st.Committed > 0 {`},
	{"removed-is-live", 1, "collected", "collect.go", `	if r.Block != nil && r.Block.TransactionID`, `	if mutant == "removed-is-live" && r.Removed != nil { return live, nil }
	if r.Block != nil && r.Block.TransactionID`},
	{"committed-without-it-is-live", 543, "collected", "collect.go", `&& r.Block.Names(key) {`, `&& (r.Block.Names(key) || mutant == "committed-without-it-is-live") {`},
	{"sweep-forgets-superseded", 1, "collected", "sweep.go", `if g.Name.Generation < committed {`, `if g.Name.Generation < committed && mutant != "sweep-forgets-superseded" {`},
	{"epoch-unchecked", 1680, "missing", "mem/mem.go", `if r.epoch == nil || r.epoch.Token() != token {`, `if mutant != "epoch-unchecked" && (r.epoch == nil || r.epoch.Token() != token) {`},
	{"transactions-under-way-survive", 3050, "missing", "undecided.go", `			if decided[n.Key()] {`, `			if decided[n.Key()] || mutant == "transactions-under-way-survive" {`},
	{"deletes-before-decided", 0, "TestNothingIsDeletedBeforeOlderEpochsAreDecided", "collector.go", `	if !x.epoch.Decided {`, `	if !x.epoch.Decided && mutant != "deletes-before-decided" {`},
	{"manifests-unread", 1, "missing", "collect.go", `		if by == "" {
			unneeded`, `		if by == "" || mutant == "manifests-unread" {
			unneeded`},
	{"generations-start-over", 0, "TestLateDeleteMeetsNoNewObject", "refs.go", `return f.Number<<16 | f.Era<<6 }`, `if mutant == "generations-start-over" { return 0 }
	return f.Number<<16 | f.Era<<6 }`},
	{"eras-share-keys", 1, "missing", "forget.go", `// forgetPage is`, `// forgetPage is `},
	{"forgets-at-once", 1, "missing", "refs.go", `	// 0 is the first era of this epoch or of an earlier one.`, `	if mutant == "forgets-at-once" { return r.Condemned && f.Decided }`},
	{"earlier-eras-add", 1680, "missing", "refs.go", `	if f.Era == 0 {`, `	if f.Era == 0 || mutant == "earlier-eras-add" {`},
	{"earlier-keys-again", 0, "TestKeysOfEarlierErasAreNotMadeAgain", "prepare.go", `max(o.name.Generation+1, t.epoch.FirstGeneration())`,
		`o.name.Generation+1
	if mutant != "earlier-keys-again" { o.name.Generation = max(o.name.Generation, t.epoch.FirstGeneration()) }`},
	{"outdated-goes-on", 1, "missing", "publisher.go", `o.name.Generation, o.ready, o.referred = f.FirstGeneration(), false, false`,
		`o.name.Generation = f.FirstGeneration()
			if mutant == "eras-share-keys" { o.name.Generation = f.Number<<16 }
			if mutant != "outdated-goes-on" { o.ready, o.referred = false, false }`},
}

// severalMutants are bugs of publications of several generations, which TestSchedulesOfSeveral finds.
var severalMutants = []mutant{
	{name: "references-of-one", seed: 1, finds: "missing end", file: "prepare.go", old: `		err := b.p.cfg.Refs.Add(ctx, of[0].epoch.Token(), add...)`,
		new: `		sent := add
		if mutant == "references-of-one" { sent = add[:1] }
		err := b.p.cfg.Refs.Add(ctx, of[0].epoch.Token(), sent...)`},
	{name: "plans-that-count-go", seed: 1, finds: "plan", file: "plans.go", old: `		case n.Generation >= at.committed:`,
		new: `		case n.Generation >= at.committed && mutant != "plans-that-count-go":`},
	{name: "plans-of-blocks-go", seed: 1, finds: "plan", file: "plans.go", old: `		case became == published:`,
		new: `		case became == published && mutant != "plans-of-blocks-go":`},
	{name: "plans-by-one-resolution", seed: 1, finds: "plan", file: "plans.go", old: `	for _, n := range of {
		slot := n`, new: `	if mutant == "plans-by-one-resolution" { of = of[:1] }
	for _, n := range of {
		slot := n`},
	{name: "plans-of-aborted-stay", seed: 1, finds: "collected", file: "plans.go", old: `	left, next := leftoverPlans(page)`,
		new: `	left, next := leftoverPlans(page)
	if mutant == "plans-of-aborted-stay" { left = nil }`},
}

// lifeMutants are bugs of compaction, retention and views, which TestLifeSchedules finds.
var lifeMutants = []mutant{
	{name: "points-back", seed: 1, finds: "turn collected", file: "../catalog/compaction.go", old: `	if i == nil || i.Name.Span != n.Span {`,
		new: `	if mutant == "points-back" { return true }
	if i == nil || i.Name.Span != n.Span {`},
	{name: "rows-unmasked", seed: 1, finds: "rows", file: "../catalog/pieces.go", old: `Piece{Block: of[0].Redirect.Block, From: h, To: h, Shards: byHour[h]})`,
		new: `Piece{Block: of[0].Redirect.Block, From: h, To: h, Shards: byHour[h]})
		if mutant == "rows-unmasked" { out[len(out)-1].Shards = nil }`},
	{name: "replaced-in-silence", seed: 0, finds: "TestViewThatMissesTheNextGeneration", file: "../catalog/generations.go", old: `s.Removed.SupersededBy > s.Top {`,
		new: `s.Removed.SupersededBy > s.Top && mutant != "replaced-in-silence" {`},
	{name: "compaction-gone-is-nothing", seed: 0, finds: "TestViewOfACompactionThatIsGone", file: "../catalog/reader.go", old: `		c, err := r.Compaction(ctx, s.Redirect.Name)
		if err != nil {`, new: `		c, err := r.Compaction(ctx, s.Redirect.Name)
		if err != nil && mutant == "compaction-gone-is-nothing" {
			s.Redirect = nil
			return nil
		}
		if err != nil {`},
	{name: "lowest-generation-counts", seed: 1, finds: "silent old end", file: "../catalog/reader.go", old: `	for _, l := range slices.Backward(of.Listed) {`,
		new: `	if mutant == "lowest-generation-counts" {
		of.Listed = slices.Clone(of.Listed)
		slices.Reverse(of.Listed)
	}
	for _, l := range slices.Backward(of.Listed) {`},
	{name: "turn-unconditional", seed: 1, finds: "turn once", file: "compaction.go", old: `	_, err := p.cfg.Store.Replace(ctx, r.name.Key()`,
		new: `	if i, err := p.cfg.Store.Head(ctx, r.name.Key()); err == nil && mutant == "turn-unconditional" { r.etag = i.ETag }
	_, err := p.cfg.Store.Replace(ctx, r.name.Key()`},
	{name: "redirects-without-the-queue", seed: 0, finds: "TestRedirectsThatOthersMeet", file: "compaction.go", old: `			left = append(left, r.left...)`,
		new: `			if mutant != "redirects-without-the-queue" || len(left) == 0 { left = append(left, r.left...) }`},
	{name: "lost-redirects-are-forgotten", seed: 0, finds: "TestRedirectsThatOthersMeet", file: "compaction.go", old: `		if r.lost {
				names`, new: `		if r.lost && mutant != "lost-redirects-are-forgotten" {
				names`},
	{name: "what-waits-leaves-the-queue", seed: 0, finds: "TestItemsAreDecidedTogether", file: "collector.go", old: `		if later[o.key] {`,
		new: `		if later[o.key] && mutant != "what-waits-leaves-the-queue" {`},
	{name: "needed-by-what-points-there-only", seed: 0, finds: "TestCompactionThatNothingPointsAtYet", file: "compaction.go", old: `	case r.Block.Redirect != nil && r.Block.Redirect.Name != compaction:`,
		new: `	case r.Block.Redirect == nil && mutant == "needed-by-what-points-there-only":
		return false, nil
	case r.Block.Redirect != nil && r.Block.Redirect.Name != compaction:`},
	{name: "needed-by-the-first-source-only", seed: 1, finds: "needed", file: "compaction.go", old: `slices.Backward(s.Sources) {`,
		new: `slices.Backward(s.Sources) {
		if mutant == "needed-by-the-first-source-only" && src != s.Sources[0] { continue }`},
	{name: "superseded-sources-need-it", seed: 11, finds: "collected", file: "compaction.go", old: `	by, err := c.superseding(ctx, src)`,
		new: `	if mutant == "superseded-sources-need-it" { return true, nil }
	by, err := c.superseding(ctx, src)`},
	{name: "compaction-is-superseded", seed: 1, finds: "lost rows missing collected", file: "collector.go", old: `	if n.Span > 0 {`, new: `	if n.Span > 0 && mutant != "compaction-is-superseded" {`},
	{name: "superseding-mixes-spans", seed: 1, finds: "superseded record", file: "record.go", old: `		if above.Name != of {`,
		new: `		if mutant == "superseding-mixes-spans" {
			of.Span = above.Name.Span
		}
		if above.Name != of {`},
	{name: "compactions-unread", seed: 1, finds: "missing", file: "named.go", old: `			case g.Record.Block != nil:`,
		new: `			case g.Record.Block != nil && (g.Name.Span == 0 || mutant != "compactions-unread"):`},
	{name: "compactions-under-way-survive", seed: 0, finds: "TestCompactionUnderWayWhenReferencesAreLost", file: "undecided.go", old: `layout.ParseCompactionPlan(key); err == nil {`,
		new: `layout.ParseCompactionPlan(key); err == nil {
		if mutant == "compactions-under-way-survive" { return nil }`},
	{name: "compacted-still-names-it", seed: 1, finds: "collected", file: "collect.go", old: `	// A generation that was committed by another plan, or without this object, never uses this reference.`,
		new: `	if mutant == "compacted-still-names-it" && r.Block != nil && len(r.Block.Objects) == 0 { return live, nil }`},
	{name: "redirected-before-the-commit", seed: 1, finds: "lost", file: "../compact/compactor.go", old: `	got, err := c.cfg.Publisher.Publish(ctx,`,
		new: `	if mutant == "redirected-before-the-commit" {
		_, _ = c.cfg.Publisher.Compact(ctx, name, p.Sources...)
	}
	got, err := c.cfg.Publisher.Publish(ctx,`},
	{name: "merge-unmasked", seed: 5, finds: "conserved end", file: "../block/cursor.go", old: `r := x.Series(i); p.Holds(r.Agent) &&`,
		new: `r := x.Series(i); (p.Holds(r.Agent) || mutant == "merge-unmasked") &&`},
	{name: "orphaned-is-never-said", seed: 50, finds: "collected", file: "../compact/scan.go", old: `	at := map[catalog.Name]*catalog.Block{}
	for _, block`, new: `	if mutant == "orphaned-is-never-said" { return nil }
	at := map[catalog.Name]*catalog.Block{}
	for _, block`},
	{name: "plans-of-compactions-under-way-go", seed: 1, finds: "plan", file: "plans.go", old: `		case !decided:`,
		new: `		case !decided && (n.Span == 0 || mutant != "plans-of-compactions-under-way-go"):`},
	{name: "expiry-of-some-shards-is-none", seed: 0, finds: "TestViewOfAnHourThatExpires", file: "../catalog/view.go", old: `	return hr.expired[res] || v.expiry`,
		new: `	return hr.expired[res] && mutant != "expiry-of-some-shards-is-none" || v.expiry`},
	{name: "expiry-is-not-read", seed: 0, finds: "TestViewOfAnHourThatExpires", file: "../catalog/catalog.go", old: `	p.next.expiry, p.next.unreadable = e, nil`,
		new: `	if mutant != "expiry-is-not-read" { p.next.expiry, p.next.unreadable = e, nil }`},
	{name: "expiry-goes-back", seed: 0, finds: "TestViewOfAnHourThatExpires", file: "../compact/expiry.go", old: `	if e.Covers(to, res) {`,
		new: `	if e.Covers(to, res) && mutant != "expiry-goes-back" {`},
	{name: "expiry-is-not-decided", seed: 0, finds: "TestViewOfAnHourThatExpires", file: "../compact/expirer.go", old: `	if err := r.decide(ctx, res, to, r.cfg.Now()); err != nil {`,
		new: `	if mutant == "expiry-is-not-decided" {
	} else if err := r.decide(ctx, res, to, r.cfg.Now()); err != nil {`},
	{name: "older-rows-stand-in", seed: 0, finds: "TestViewOfAnHourThatExpires", file: "../catalog/view.go", old: `s == nil || s.Name.Generation < gen || s.Unrolled {`,
		new: `s == nil || s.Name.Generation < gen && mutant != "older-rows-stand-in" || s.Unrolled {`},
	{name: "retention-of-all-resolutions", seed: 1, finds: "expired", file: "../compact/expirer.go", old: `if n.Resolution != res || n.Span > 0 {`,
		new: `if n.Resolution != res && mutant != "retention-of-all-resolutions" || n.Span > 0 {`},
	{name: "retention-of-an-hour-more", seed: 1, finds: "expired", file: "../compact/scan.go", old: `err == nil && of.Name.Hour > to {`,
		new: `err == nil && of.Name.Hour > to && (mutant != "retention-of-an-hour-more" || of.Name.Hour > to+1) {`},
	{name: "log-before-it-is-done", seed: 1, finds: "log", file: "../compact/expirer.go", old: `	for _, n := range names {
		line, err`, new: `	if mutant == "log-before-it-is-done" {
		early := log
		for _, n := range names { early.Blocks = append(early.Blocks, removedBlock{Key: n.Key()}) }
		_ = create(ctx, r.cfg.Store, key, RetentionKind.Marshal(early))
	}
	for _, n := range names {
		line, err`},
}

const mutantVariable = `package %s

import "os"

var mutant = os.Getenv("LIGHTMETRICS_MUTANT")
`

// overlay writes the changed sources and gives go build's overlay file.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string][]byte{}
	for _, dir := range []string{"../publish", "mem", "../catalog", "../block", "../compact"} {
		sources[filepath.Join(dir, "mutant.go")] = fmt.Appendf(nil, mutantVariable, filepath.Base(dir))
	}
	for _, m := range slices.Concat(mutants, severalMutants, lifeMutants) {
		src := sources[m.file]
		if src == nil {
			if src, err = os.ReadFile(m.file); err != nil {
				t.Fatal(err)
			}
		}
		if n := bytes.Count(src, []byte(m.old)); n != 1 {
			t.Fatalf("%s: the text to replace is in %s %d times", m.name, m.file, n)
		}
		sources[m.file] = bytes.Replace(src, []byte(m.old), []byte(m.new), 1)
	}
	replace := map[string]string{}
	for file, src := range sources {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(to, src, 0o644); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, file)] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A bug that the schedules do not find is a hole in them.
func TestMutantsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the package once more")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "mutants")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay(t, dir), "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, of := range []struct {
		mutants   []mutant
		in        string
		schedules int
	}{{mutants, "TestSchedules", 4000}, {severalMutants, "TestSchedulesOfSeveral", 1000}, {lifeMutants, "TestLifeSchedules", 1000}} {
		if out, err := play(t, binary, of.in, mutant{seed: 1}, 20); err != nil {
			t.Fatalf("without a mutant: %v\n%s", err, out)
		}
		for _, m := range of.mutants {
			find(t, binary, of.in, m, of.schedules)
		}
	}
}

// find plays schedules until one finds the mutant, or the test that does.
func find(t *testing.T, binary, in string, m mutant, schedules int) {
	t.Helper()
	out, err := play(t, binary, in, m, schedules)
	if m.seed == 0 {
		if err == nil || !strings.Contains(out, "--- FAIL: "+m.finds) {
			t.Errorf("%s: not found by %s: %v\n%.2000s", m.name, m.finds, err, out)
		}
		return
	}
	line := ""
	for l := range strings.Lines(out) {
		if strings.Contains(l, "seed ") {
			line = strings.TrimSpace(l)
			break
		}
	}
	_, found, _ := strings.Cut(line, "seed ")
	_, violation, ok := strings.Cut(found, ": ")
	word, _, _ := strings.Cut(violation, ":")
	if err == nil || !ok || !strings.Contains(m.finds, word) {
		t.Errorf("%s: not found as %q: %v\n%.2000s", m.name, m.finds, err, out)
		return
	}
	t.Logf("%-32s %.150s", m.name, line)
}

func play(t *testing.T, binary, in string, m mutant, schedules int) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if m.seed == 0 {
		in = m.finds
	}
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+in+"$", "-test.v")
	cmd.Env = append(os.Environ(), "LIGHTMETRICS_MUTANT="+m.name, fmt.Sprintf("LIGHTMETRICS_SCHEDULES=%d", schedules), fmt.Sprintf("LIGHTMETRICS_SEED=%d", m.seed))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
