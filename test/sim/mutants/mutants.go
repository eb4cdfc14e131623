package main

// mutant is one planted bug: edits to source files, each of which must apply exactly once.
type mutant struct {
	name  string
	about string // the race of the table in docs/protocol/acceptance.md or gc.md, or the step
	edits []edit
}

type edit struct{ file, old, new string }

const (
	protocolGo  = "internal/acceptance/accept/protocol.go"
	blobGo      = "internal/acceptance/accept/blob.go"
	decideGo    = "internal/acceptance/accept/decide.go"
	inlineGo    = "internal/acceptance/accept/inline.go"
	claimGo     = "internal/acceptance/accept/claim.go"
	authorityGo = "internal/acceptance/accept/bind.go"
	executeGo   = "internal/acceptance/gc/execute.go"
	proveGo     = "internal/acceptance/gc/prove.go"
	resolveGo   = "internal/objstore/resolve.go"
	policyGo    = "internal/objstore/policy.go"
	ledgerGo    = "internal/derived/ledger/ledger.go"
	viewGo      = "internal/derived/ledger/view.go"
	qualifyGo   = "internal/acceptance/qualify/qualify.go"
	probesGo    = "internal/acceptance/qualify/policy.go"
	planGo      = "internal/acceptance/gc/plan.go"
	refsGo      = "internal/acceptance/gc/references.go"
	framesGo    = "internal/acceptance/gc/frames.go"
	runnerGo    = "internal/acceptance/gc/runner.go"
	logGo       = "internal/acceptance/gc/log.go"
	announceGo  = "internal/acceptance/gc/epochs.go"
	namesGo     = "internal/acceptance/epochs/log.go"
	barrierGo   = "internal/acceptance/journal/barrier.go"
	spoolGo     = "internal/acceptance/spool/spool.go"
	landerGo    = "internal/acceptance/spool/lander.go"
	bootsGo     = "internal/acceptance/spool/boots.go"
	recoverGo   = "internal/acceptance/spool/recover.go"
	reconcileGo = "internal/derived/reconcile/reconcile.go"
	derivedGo   = "internal/derived/reconcile/derived.go"
)

const (
	markerCheck  = "if err := b.verifyNotCondemned(ctx); err != nil {"
	markerBlock  = "\tif err := b.verifyNotCondemned(ctx); err != nil {\n\t\treturn Result{}, err\n\t}\n"
	ensureBlock  = "\tif !inline {\n\t\tif err := b.ensure(ctx); err != nil {\n\t\t\treturn Result{}, err\n\t\t}\n\t}\n"
	skipped      = "if err := error(nil); err != nil {"
	created      = "\tcase created:\n\t\treturn Result{Outcome: Accepted"
	askedOnce    = "\t\tif !errors.Is(err, ErrExists) {\n\t\t\treturn nil, false, err\n\t\t}\n"
	condemn      = "if err := x.c.condemn(ctx, k, x.plan); err != nil {"
	secondProof  = "\tif kept := x.c.prove(ctx, &k, k.id); kept != nil {\n\t\tx.note(k, KeptBlob, kept.Reason, kept.Detail)\n\t\treturn\n\t}\n"
	removeMarker = "_ = x.c.cfg.Store.Delete(ctx, accept.CondemnedMarker{FrameSHA256: k.SHA256, Generation: k.Generation}.Key())\n"
	provedFrames = "\tif frames, err = r.Prove(ctx, frames); err != nil || len(frames) == 0 || r.DryRun {\n\t\treturn frames, err\n\t}\n"
	logFrames    = "\tif _, err := f.cfg.Store.Create(ctx, l.Key(body), body, jsonContent); err != nil && !errors.Is(err, objstore.ErrExists) {\n\t\treturn fmt.Errorf(\"log of removed frames: %w\", err)\n\t}\n"
	asDuplicate  = "return Result{Outcome: Duplicate, Manifest: m, ManifestKey: key, ManifestBytes: body}, nil\n"
)

var mutants = []mutant{
	// Records that carry their frames.
	{"inline-trusts-blobs", "a duplicate of a manifest that names a blob relies on that manifest alone", []edit{{protocolGo, "carried := res.Manifest.Inline\n", "carried := inline || res.Manifest.Inline\n"}}},
	{"inline-blob-not-ensured", "such a duplicate reads a marker, and makes sure of no blob", []edit{{protocolGo, "if err := b.ensure(ctx); err != nil {\n\t\t\treturn Result{}, err\n\t\t}\n\t\tm.Inline", skipped + "\n\t\t\treturn Result{}, err\n\t\t}\n\t\tm.Inline"}}},
	{"inline-no-marker", "such a duplicate makes sure of a blob, and reads no marker", []edit{{protocolGo, "\tif !carried && !hopes {\n", "\tif !carried && !inline {\n"}}},
	{"inline-quarantine-not-read", "a quarantine record that exists carries the frame, whoever wrote it", []edit{{decideGo, "return inline && (created || b.carries(stored, m.Identity)), nil", "return inline && len(stored) >= 0, nil"}}},
	{"inline-quarantine-in-doubt-carries", "a quarantine record that can't be read carries the frame", []edit{{decideGo, "return err == nil && c.Inline()", "return err != nil || c.Inline()"}}},
	{"inline-frame-not-hashed", "a manifest whose frame is damaged is a sound one", []edit{{inlineGo, "case identity.Sum(frame) != sum:", "case false:"}}},
	{"inline-gc-spares", "an orphan is kept by a manifest that carries the frame", []edit{{proveGo, "if m.FrameSHA256 == k.SHA256 && !m.Inline {", "if m.FrameSHA256 == k.SHA256 {"}}},
	{"inline-gc-takes-all", "a manifest that names a blob is taken for one that carries the frame", []edit{{proveGo, "if m.FrameSHA256 == k.SHA256 && !m.Inline {", "if m.FrameSHA256 == k.SHA256 && m.Inline {"}}},
	{"inline-entries-name-blobs", "an entry about a manifest that carries the frame keeps blobs out of plans", []edit{{refsGo, "if entries[i].Inline && !entries[i].Outcome.Conflict() {", "if false {"}}},
	{"inline-conflicts-name-nothing", "an entry about a quarantine record that carries the frame names no blob, which its key keeps", []edit{{refsGo, "if entries[i].Inline && !entries[i].Outcome.Conflict() {", "if entries[i].Inline {"}}},
	// Acceptance: the marker (step 4).
	{"accept-no-marker", "a late manifest; a reused orphan; a long sleep: no marker is read", []edit{{protocolGo, markerCheck, skipped}}},
	{"accept-no-marker-on-duplicate", "a crashed collector's manifest lands after its blob was collected", []edit{{protocolGo, markerCheck, "if res.Outcome == Duplicate {\n\t\treturn res, nil\n\t}\n\t" + markerCheck}}},
	{"accept-no-marker-on-accepted", "an old orphan is reused while it is collected", []edit{{protocolGo, markerCheck, "if res.Outcome == Accepted {\n\t\treturn res, nil\n\t}\n\t" + markerCheck}}},
	{"accept-no-marker-on-conflict", "the loser's blob is collected while it is quarantined", []edit{{protocolGo, markerCheck, "if res.Outcome == Conflict {\n\t\treturn res, nil\n\t}\n\t" + markerCheck}}},
	{"accept-marker-before-manifest", "a collector sleeps for days between blob and manifest; steps 3 and 4 swapped", []edit{
		{protocolGo, markerCheck, skipped}, {protocolGo, "\tm, err := s.NewManifest(b.gen, p.authorityID, p.collectorID, p.clock, p.rand)\n", markerBlock + "\tm, err := s.NewManifest(b.gen, p.authorityID, p.collectorID, p.clock, p.rand)\n"}}},
	{"accept-marker-before-quarantine", "the loser's blob is collected while it is quarantined; steps 3b and 4 swapped", []edit{
		{protocolGo, markerCheck, skipped}, {protocolGo, "\tif res.Outcome == Conflict {\n", markerBlock + "\tif res.Outcome == Conflict {\n"}}},
	{"accept-marker-read-once", "the next generation's own marker is not read (4a)", []edit{{blobGo, "\t\tif err := b.ensure(ctx); err != nil {\n\t\t\treturn err\n\t\t}", "\t\treturn b.ensure(ctx)"}}},
	{"accept-marker-in-doubt-is-absent", "a marker that can't be read counts as absent", []edit{{blobGo, "case errors.Is(err, objstore.ErrNotFound):\n\t\treturn false, nil", "case err != nil:\n\t\treturn false, nil"}}},
	{"accept-marker-of-another-generation", "the marker of another generation is read", []edit{{blobGo, "layout.Condemned(b.sha, b.gen))", "layout.Condemned(b.sha, b.gen+1))"}}},
	{"accept-condemned-generation-rewritten", "a timed-out delete is applied after the blob was written again: the generation is reused", []edit{
		{blobGo, "\t\tif err := b.skipTo(next, SkipCondemned); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := b.ensure(ctx); err != nil {\n\t\t\treturn err\n\t\t}", "\t\treturn b.ensure(ctx)"}}},
	{"accept-head-in-place-of-marker", "a HEAD of the blob before the answer, and no marker", []edit{
		{blobGo, "condemned, err := b.condemned(ctx)", "_, herr := b.p.store.Head(ctx, layout.Blob(b.sha, b.gen))\n\t\tcondemned, err := errors.Is(herr, objstore.ErrNotFound), error(nil)"}}},
	{"accept-generation-does-not-grow", "a condemned generation is tried for ever", []edit{{blobGo, "\tb.gen = gen\n", ""}}},

	// Acceptance: the blob (step 2).
	{"accept-existing-blob-trusted", "an existing blob is truncated or garbage: no look at all", []edit{{blobGo, "why, err := b.verify(ctx, key)", "why, err := Skip(\"\"), error(nil)"}}},
	{"accept-existing-blob-by-size", "an existing blob is garbage of the right size", []edit{{blobGo, "info.Size == int64(len(b.frame)) && info.SHA256 == b.sha:", "info.Size == int64(len(b.frame)):"}}},
	{"accept-unhashed-blob-trusted", "an existing blob is garbage, and the store keeps no checksum", []edit{{blobGo, "bytes.Equal(got, b.frame)", "(bytes.Equal(got, b.frame) || len(got) == len(b.frame))"}}},
	{"accept-blob-without-checksum", "the body is damaged on the way, and the store can't tell", []edit{{blobGo, "objstore.PutOptions{SHA256: b.sha, ", "objstore.PutOptions{"}}},
	{"accept-unknown-blob-is-created", "an unknown outcome of the blob counts as created", []edit{{blobGo, "case err == nil:\n\t\tb.p.events.blobCreated", "case err == nil, errors.Is(err, objstore.ErrUnknown):\n\t\tb.p.events.blobCreated"}}},
	{"accept-409-blob-exists", "a 409 of the blob counts as evidence that it is there", []edit{{blobGo, "\tcase errors.Is(err, objstore.ErrExists):\n\t\twhy", "\tcase errors.Is(err, objstore.ErrConflict):\n\t\treturn true, nil\n\tcase errors.Is(err, objstore.ErrExists):\n\t\twhy"}}},
	{"accept-manifest-before-blob", "steps 2 and 3 swapped", []edit{
		{protocolGo, ensureBlock, ""}, {protocolGo, "\tif res.Outcome == Conflict {\n", ensureBlock + "\tif res.Outcome == Conflict {\n"}}},
	{"accept-no-blob", "step 2 left out", []edit{{protocolGo, ensureBlock, ""}}},

	// Acceptance: the manifest (step 3).
	{"accept-unknown-manifest-is-accepted", "an unknown outcome of the manifest counts as accepted", []edit{{decideGo, created, "\tcase created, errors.Is(err, objstore.ErrUnknown):\n\t\treturn Result{Outcome: Accepted"}}},
	{"accept-404-after-unknown-is-final", "timeout, GET says 404, the PUT lands later", []edit{
		{decideGo, "\tcase err != nil:\n\t\treturn Result{}, b.p.failed(ctx, StepManifest, err)\n", "\tcase err != nil:\n\t\tif _, _, gerr := b.p.store.Get(ctx, key, objstore.GetOptions{}); errors.Is(err, objstore.ErrUnknown) && errors.Is(gerr, objstore.ErrNotFound) {\n\t\t\treturn Result{}, &RefusedError{Reason: ReasonInvalidSubmission, Err: gerr}\n\t\t}\n\t\treturn Result{}, b.p.failed(ctx, StepManifest, err)\n"}}},
	{"accept-own-write-is-duplicate", "a lost 200, retried, gives 412: the attempt id is not looked at", []edit{{decideGo, "if there.AttemptID == m.AttemptID {", "if there.AttemptID == \"\" {"}}},
	{"accept-same-hash-is-accepted", "another's write counts as our own", []edit{{decideGo, "if there.AttemptID == m.AttemptID {", "if there.AttemptID != \"\" {"}}},
	{"accept-attempt-id-per-request", "a lost 200, retried, gives 412: the request has an attempt id that the call does not know", []edit{
		{decideGo, "\tstored, created, err := objstore.CreateOrGet(ctx, b.p.store, key, body, MaxObjectBytes, contentOf(m.Inline))\n\tswitch {\n", "\tstored, created, err := objstore.CreateOrGet(ctx, b.p.store, key, body, MaxObjectBytes, contentOf(m.Inline))\n\tm.AttemptID = m.AttemptID[1:] + m.AttemptID[:1]\n\tswitch {\n"}}},
	{"accept-412-is-duplicate", "the existing manifest is not read", []edit{{decideGo, "\treturn b.compare(key, stored, m)\n", "\tif stored != nil {\n\t\t" + asDuplicate + "\t}\n\treturn b.compare(key, stored, m)\n"}}},
	{"accept-409-is-duplicate", "a 409 of the manifest counts as evidence that it is there", []edit{{decideGo, created, "\tcase errors.Is(err, objstore.ErrConflict):\n\t\t" + asDuplicate + created}}},
	{"accept-hash-not-compared", "two frames of one identity count as the same", []edit{{decideGo, "\tif there.FrameSHA256 == m.FrameSHA256 {", "\tif there.RecordCount == m.RecordCount {"}}},
	{"accept-no-quarantine", "step 3b left out", []edit{{protocolGo, "\tif res.Outcome == Conflict {\n", "\tif res.Outcome == 0 {\n"}}},
	{"accept-unknown-quarantine-is-done", "an unknown outcome of the quarantine record counts as written", []edit{{decideGo, "if errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) {", "if errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) || errors.Is(err, objstore.ErrUnknown) {"}}},
	{"accept-quarantine-names-the-winner", "the quarantine record's key has the wrong hash", []edit{{decideGo, "layout.Quarantine(m.Identity, b.sha)", "layout.Quarantine(m.Identity, m.FrameSHA256)"}}},

	// Acceptance: boot and authority (step 1).
	{"accept-no-boot-claim", "a clone with the same boot id: step 1 left out", []edit{{protocolGo, "if err := p.claimBoot(ctx, s.Identity.BootOf(), s.SpoolID); err != nil {", skipped}}},
	{"accept-boot-owner-not-compared", "a clone with the same boot id", []edit{{claimGo, "\tif owner != spoolID {", "\tif owner == \"\" {"}}},
	{"accept-unknown-boot-is-ours", "an unknown outcome of the boot record counts as ours", []edit{{claimGo, "\tcase created:\n", "\tcase created, errors.Is(err, objstore.ErrUnknown):\n"}}},
	{"accept-authority-not-compared", "two buckets or prefixes", []edit{{authorityGo, "case (err == nil || a.Problem != nil) && a.AuthorityID != id:", "case (err == nil || a.Problem != nil) && a.AuthorityID == \"\":"}}},
	{"accept-unknown-authority-is-ours", "two buckets or prefixes: an unknown outcome counts as ours", []edit{{authorityGo, "body, jsonContent)\n\t}\n", "body, jsonContent)\n\t\tif errors.Is(err, objstore.ErrUnknown) {\n\t\t\treturn a, true, nil\n\t\t}\n\t}\n"}}},

	// The store's policy: further attempts (docs/protocol/store.md).
	{"retry-exists-after-unknown-is-created", "a lost 200, sent again, gives 412: the policy takes the object for its caller's", []edit{{policyGo, "\t\tif err != nil && unknown && op.Writes()", "\t\tif unknown && errors.Is(err, ErrExists) {\n\t\t\treturn nil\n\t\t}\n\t\tif err != nil && unknown && op.Writes()"}}},
	{"retry-gives-up-as-exists", "the policy takes an unknown outcome for an object that is there", []edit{{policyGo, "\t\tif err != nil && unknown && op.Writes()", "\t\tif errors.Is(err, ErrUnknown) {\n\t\t\treturn ErrExists\n\t\t}\n\t\tif err != nil && unknown && op.Writes()"}}},
	{"retry-unknown-is-done", "the policy takes an unknown outcome for success", []edit{{policyGo, "\t\tif err != nil && unknown && op.Writes()", "\t\tif errors.Is(err, ErrUnknown) {\n\t\t\treturn nil\n\t\t}\n\t\tif err != nil && unknown && op.Writes()"}}},
	{"retry-unread-is-absent", "the policy takes a read that fails for absence", []edit{{policyGo, "\t\tif err != nil && unknown && op.Writes()", "\t\tif errors.Is(err, ErrUnavailable) {\n\t\t\treturn ErrNotFound\n\t\t}\n\t\tif err != nil && unknown && op.Writes()"}}},
	{"resolve-unknown-is-exists", "an unknown outcome of a create is resolved by one read", []edit{{resolveGo, askedOnce, "\t\tif !errors.Is(err, ErrExists) && !errors.Is(err, ErrUnknown) {\n\t\t\treturn nil, false, err\n\t\t}\n"}, {resolveGo, "\t\tif !errors.Is(err, ErrNotFound) {\n", "\t\tif errors.Is(err, ErrNotFound) {\n\t\t\treturn body, true, nil\n\t\t}\n\t\tif !errors.Is(err, ErrNotFound) {\n"}}},

	// Garbage collection.
	{"gc-no-marker", "an old orphan is reused while it is collected: step 2 left out", []edit{{executeGo, condemn, skipped}}},
	{"gc-proof-before-marker", "an old orphan is reused while it is collected: steps 2 and 3 swapped", []edit{{executeGo, secondProof, ""}}},
	{"gc-marker-after-delete", "steps 2 and 4 swapped", []edit{
		{executeGo, condemn, "if err := x.c.remove(ctx, k); err != nil {"}, {executeGo, "\tif err := x.c.remove(ctx, k); err != nil {\n\t\tx.note(k, DeleteUnknown", "\tif err := x.c.condemn(ctx, k, x.plan); err != nil {\n\t\tx.note(k, DeleteUnknown"}}},
	{"gc-unknown-marker-is-confirmed", "the marker lands after the proof", []edit{{executeGo, "\tif errors.Is(err, objstore.ErrExists) {", "\tif errors.Is(err, objstore.ErrUnknown) {\n\t\treturn nil\n\t}\n\tif errors.Is(err, objstore.ErrExists) {"}}},
	{"gc-409-marker-is-confirmed", "a 409 of the marker counts as evidence that it is there", []edit{{executeGo, "\tif errors.Is(err, objstore.ErrExists) {", "\tif errors.Is(err, objstore.ErrConflict) {\n\t\treturn nil\n\t}\n\tif errors.Is(err, objstore.ErrExists) {"}}},
	{"gc-marker-of-generation-0", "the marker names another generation than the delete", []edit{{executeGo, "FrameSHA256: k.SHA256, Generation: k.Generation,\n", "FrameSHA256: k.SHA256,\n"}}},
	{"gc-proof-without-manifest", "the accepted manifest is not read", []edit{{proveGo, "stored, err := c.read(ctx, layout.Accepted(id))", "stored, err := []byte(nil), error(objstore.ErrNotFound)"}}},
	{"gc-proof-without-quarantine", "the quarantine record is not read", []edit{{proveGo, "switch _, err := c.read(ctx, quarantine); {", "switch err := error(objstore.ErrNotFound); {"}}},
	{"gc-unanswered-is-absent", "a read that fails counts as absence", []edit{{proveGo, "\tb, _, err := c.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})\n", "\tb, _, err := c.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})\n\tif errors.Is(err, objstore.ErrUnavailable) {\n\t\terr = objstore.ErrNotFound\n\t}\n"}}},
	{"gc-age-proves", "a collector sleeps for days: what is old is deleted", []edit{{executeGo, "\t\tvar kept *Kept\n", "\t\tif x.c.cfg.Clock.Now().Sub(k.LastModified).Hours() > 0.9 && x.c.remove(ctx, k) == nil {\n\t\t\tx.note(k, Deleted, \"\", \"\")\n\t\t\tcontinue\n\t\t}\n\t\tvar kept *Kept\n"}}},
	{"gc-deletes-all-generations", "a delete of a generation without a marker", []edit{
		{executeGo, "\t\"lightmetrics.dev/lightmetrics/internal/objstore\"\n", "\t\"lightmetrics.dev/lightmetrics/internal/layout\"\n\t\"lightmetrics.dev/lightmetrics/internal/objstore\"\n"},
		{executeGo, "\treturn objstore.DeleteVersion(ctx, c.cfg.Store, k.Key, k.version)", "\tfor g := range uint32(3) {\n\t\tif err := c.cfg.Store.Delete(ctx, layout.Blob(k.SHA256, g)); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\treturn nil"}}},
	{"gc-deletes-no-version", "on a versioned bucket the bytes stay", []edit{{executeGo, "\treturn objstore.DeleteVersion(ctx, c.cfg.Store, k.Key, k.version)", "\treturn c.cfg.Store.Delete(ctx, k.Key)"}}},
	{"frames-delete-no-version", "on a versioned bucket the bytes of frames stay that retention removes", []edit{{framesGo, "\tversioned := first.Version != \"\" || err != nil\n", "\tversioned := first.Version != \"\" && err != nil\n"}}},
	{"gc-marker-removed-after-delete", "a timed-out delete lands late, and its marker is gone", []edit{{executeGo, "\tx.note(k, Deleted, \"\", \"\")\n", "\t" + removeMarker + "\tx.note(k, Deleted, \"\", \"\")\n"}}},
	{"gc-marker-removed-when-kept", "two collections: one takes back the marker that the other relies on", []edit{{executeGo, secondProof, "\tif kept := x.c.prove(ctx, &k, k.id); kept != nil {\n\t\t" + removeMarker + "\t\tx.note(k, KeptBlob, kept.Reason, kept.Detail)\n\t\treturn\n\t}\n"}}},
	{"gc-other-frame-keeps", "orphans of a conflict are never collected", []edit{{proveGo, "if m.FrameSHA256 == k.SHA256 && !m.Inline {", "if m.Identity == id && !m.Inline {"}}},
	{"gc-never-deletes", "step 4 left out", []edit{{executeGo, "if err := x.c.remove(ctx, k); err != nil {", skipped}}},

	// Garbage collection: the plan.
	{"gc-references-ignored", "step 1: an entry of the journal keeps its blob", []edit{{planGo, "\tcase named:\n", "\tcase named && d.IsZero():\n"}}},
	{"gc-reference-keeps-its-neighbour", "step 1: an entry of the journal keeps blobs of other hashes", []edit{{refsGo, "_, named := slices.BinarySearch(n.prints, printOf(d))\n", "at, named := slices.BinarySearch(n.prints, printOf(d))\n\tnamed = named || at > 0\n"}}},
	{"gc-segments-of-an-opening-only", "step 1: of each run of the journal only the first segment counts", []edit{{refsGo, "s *journal.Segment) error { n.add(s.Entries); return nil }", "s *journal.Segment) error {\n\t\t\tif s.Opening != nil {\n\t\t\t\tn.add(s.Entries)\n\t\t\t}\n\t\t\treturn nil\n\t\t}"}}},
	{"gc-audited-entries-do-not-count", "step 1: what an audit entered in the journal is no reference", []edit{{refsGo, "if p < n.from ||", "if entries[i].Outcome > journal.Conflict || p < n.from ||"}}},
	{"gc-conflicts-do-not-count", "step 1: a frame in quarantine is no reference", []edit{{refsGo, "if p < n.from ||", "if entries[i].Outcome.Conflict() || p < n.from ||"}}},
	{"gc-failed-listing-is-empty", "step 1: a failed listing counts as the end", []edit{{planGo, "\t\tif err != nil {\n\t\t\treturn Plan{}, planError(p.ID, err)\n\t\t}\n\t\td, _, perr", "\t\tif err != nil {\n\t\t\tbreak\n\t\t}\n\t\td, _, perr"}}},
	{"gc-failed-references-are-none", "step 1: a journal that can't be read counts as its end", []edit{{refsGo, "\tpolled, err := f.Poll(ctx)\n\tif err != nil {\n\t\treturn nil, err\n\t}\n", "\tpolled, _ := f.Poll(ctx)\n"}}},
	{"gc-plan-goes-on-too-far", "step 1: a plan that goes on leaves a blob out", []edit{{planGo, "p.Next = last\n", "p.Next = info.Key\n\t\t\t_ = last\n"}}},
	{"gc-age-by-own-clock", "step 1: the age is by the collector's clock, which jumps", []edit{{planGo, "\tp := Plan{ID: o.ID}\n\tif n.from", "\to.Now = c.cfg.Clock.Now()\n\tp := Plan{ID: o.ID}\n\tif n.from"}}},
	{"gc-age-not-looked-at", "step 1: no minimum age", []edit{{planGo, "case o.MinAge > 0 && o.Now.Sub(info.LastModified) < o.MinAge:", "case o.MinAge > 0 && o.Now.Before(info.LastModified):"}}},
	{"gc-no-breaker", "the breaker: a plan that is too large", []edit{{executeGo, "if p.Tripped() && !o.Force && !o.DryRun {", "if p.Tripped() && o.Force && o.DryRun {"}}},
	{"gc-breaker-by-percent-only", "the breaker trips on small plans", []edit{{planGo, "n > BreakerBlobs && n*100", "n > 0 && n*100"}}},
	{"gc-dry-run-condemns", "a dry run writes", []edit{{executeGo, "kept == nil && x.o.DryRun", "kept == nil && x.o.DryRun && x.o.Force"}}},

	// Garbage collection: doubt, 403, the log.
	{"gc-403-is-absent", "a 403, as of a role without ListBucket, counts as absence", []edit{{proveGo, "\tb, _, err := c.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})\n", "\tb, _, err := c.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})\n\tif errors.Is(err, objstore.ErrDenied) {\n\t\terr = objstore.ErrNotFound\n\t}\n"}}},
	{"gc-403-marker-is-confirmed", "a 403 of the marker counts as evidence that it is there", []edit{{executeGo, "\tif errors.Is(err, objstore.ErrExists) {", "\tif errors.Is(err, objstore.ErrDenied) {\n\t\treturn nil\n\t}\n\tif errors.Is(err, objstore.ErrExists) {"}}},
	{"gc-unreadable-manifest-is-absent", "a manifest that does not parse counts as absent", []edit{{proveGo, "\t\tif err != nil {\n\t\t\treturn keep(k, RecordUnreadable, fmt.Sprintf(\"%s: %v\", layout.Accepted(id), err))\n\t\t}\n", "\t\t_ = fmt.Sprint(err)\n"}}},
	{"gc-damaged-manifest-is-absent", "a manifest that is damaged at rest, or too long, counts as absent", []edit{{proveGo, "\tcase objstore.Unreadable(err):\n\t\treturn keep(k, RecordUnreadable, err.Error())\n", "\tcase objstore.Unreadable(err):\n"}}},
	{"gc-foreign-manifest-is-another", "a manifest of another authority or identity counts as one of another frame", []edit{{proveGo, "if err == nil && (m.Identity != id || m.AuthorityID != c.cfg.AuthorityID) {", "if err == nil && m.Identity != id && m.AuthorityID != c.cfg.AuthorityID {"}}},
	{"gc-damaged-quarantine-is-absent", "a quarantine record that is damaged at rest counts as absent", []edit{{proveGo, "case err == nil, objstore.Unreadable(err):\n\t\treturn keep(k, Quarantined, quarantine)\n\tcase !errors.Is(err, objstore.ErrNotFound):", "case err == nil:\n\t\treturn keep(k, Quarantined, quarantine)\n\tcase !errors.Is(err, objstore.ErrNotFound) && !objstore.Unreadable(err):"}}},
	{"gc-delete-not-logged", "the delete comes before its entry in the log", []edit{{executeGo, "\t\tx.note(k, Condemned, \"\", \"\")\n", ""}}},
	{"gc-log-failure-ignored", "the log fails, and the delete goes on", []edit{{executeGo, "\tif err := x.flush(ctx); err != nil {\n\t\treturn err\n\t}\n", "\t_ = x.flush(ctx)\n"}}},

	// Garbage collection as a service.
	{"gc-fence-not-read", "a process that was stopped goes on after another has taken over", []edit{{executeGo, "\tif len(orphans) > 0 && x.o.Fence != nil {", "\tif len(orphans) > 1<<20 && x.o.Fence != nil {"}}},
	{"gc-claim-not-compared", "the fence is read, and another's claim passes", []edit{{runnerGo, "\t\tif s.Claim != r.cfg.Claim || s.Plan != r.plan {\n\t\t\treturn ErrFenced\n\t\t}\n", ""}}},
	{"gc-lease-not-waited-for", "a process takes over while another one collects", []edit{{runnerGo, "if s.Claim != \"\" && s.Claim != r.cfg.Claim && now.Sub(time.Unix(s.UpdatedAt, 0)) < r.cfg.Lease {", "if s.Claim != \"\" && s.Claim != r.cfg.Claim && now.Sub(time.Unix(s.UpdatedAt, 0)) < 0 {"}}},
	{"gc-service-breaker-never-trips", "the service's breaker: a plan that is too large", []edit{{runnerGo, "released := b != nil && b.Released", "released := plan.Listed >= 0 || b != nil && b.Released"}}},
	{"gc-hidden-manifest-passes", "the service's breaker: a manifest that must be there can't be seen, and the plan goes on", []edit{{runnerGo, "\t\treturn false, nil, r.trip(ctx, now, Breaker{Cause: Hidden, Key: key})\n", "\t\tif err := r.trip(ctx, now, Breaker{Cause: Hidden, Key: key}); err != nil {\n\t\t\treturn false, nil, err\n\t\t}\n"}}},
	{"gc-service-log-not-written", "the log of the service is left out", []edit{{runnerGo, "if err := l.write(ctx, r.store); err != nil {", skipped}}},
	{"gc-service-log-unknown-is-written", "an unknown outcome of the log counts as written", []edit{{logGo, "err != nil && !errors.Is(err, objstore.ErrExists) {", "err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrUnknown) {"}}},

	// Retention of raw frames.
	{"retain-no-condemn", "retention, step 3 left out: as retention was", []edit{{framesGo, "for n := 0; h.below < below; n++ {", "for n := 0; h.below < below && n < 0; n++ {"}}},
	{"retain-proof-before-condemn", "retention, steps 3 and 4 swapped", []edit{
		{framesGo, provedFrames, ""},
		{framesGo, "\tif !r.DryRun {\n\t\tif err := h.condemn(ctx, above(frames)); err != nil {\n", provedFrames + "\tif !r.DryRun {\n\t\tif err := h.condemn(ctx, above(frames)); err != nil {\n"}}},
	{"retain-proof-ignored", "retention, step 4 left out: what blocks had when it began is removed", []edit{{framesGo, "if frames, err = r.Prove(ctx, frames); err", "if _, err = r.Prove(ctx, frames); err"}}},
	{"retain-unknown-is-raised", "the hour's record lands after the proof", []edit{{framesGo, "\t\tif err == nil {\n\t\t\th.below = below\n", "\t\tif err == nil || errors.Is(err, objstore.ErrUnknown) {\n\t\t\th.below = below\n"}}},
	{"retain-409-is-raised", "a 409 of the hour's record counts as written", []edit{{framesGo, "\t\tif err == nil {\n\t\t\th.below = below\n", "\t\tif err == nil || errors.Is(err, objstore.ErrConflict) {\n\t\t\th.below = below\n"}}},
	{"retain-condemns-too-few", "the generation that is deleted is not condemned", []edit{{framesGo, "below = max(below, gen+1)", "below = max(below, gen)"}}},
	{"retain-lowers", "a later pass that finds generation 0 alone lowers the hour's number", []edit{{framesGo, "if h.below = max(h.below, c.Below); h.below >= below {", "if c.Below == below {"}}},
	{"retain-deletes-what-came-since", "retention, step 6: a generation that a duplicate wrote meanwhile", []edit{{framesGo, "for _, key := range frames[i].Keys {", "for g := range uint32(4) {\n\t\t\tkey := layout.Blob(frames[i].FrameSHA256, g)"}}},
	{"retain-log-after-delete", "retention, steps 5 and 6 swapped", []edit{{framesGo, logFrames, "\tdefer func() { _, _ = f.cfg.Store.Create(ctx, l.Key(body), body, jsonContent) }()\n"}}},
	{"retain-unknown-log-counts", "retention, step 5: the log never arrives", []edit{{framesGo, "body, jsonContent); err != nil && !errors.Is(err, objstore.ErrExists) {\n\t\treturn fmt.Errorf(\"log", "body, jsonContent); err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrUnknown) {\n\t\treturn fmt.Errorf(\"log"}}},
	{"accept-no-hour", "4b left out: a duplicate relies on what retention removes", []edit{{blobGo, "\tif !b.found {\n", "\tif !b.found || b.id.Agent != \"\" {\n"}}},
	{"accept-hour-before-manifest", "4b before 3", []edit{
		{decideGo, "res.Outcome, b.found = Duplicate, true", "res.Outcome = Duplicate"},
		{protocolGo, ensureBlock, ensureBlock + "\tb.found = true\n\tbelow, err := b.condemnedByHour(ctx)\n\tif err != nil {\n\t\treturn Result{}, err\n\t}\n\tif b.found = false; b.gen < below {\n\t\tb.gen = below\n" + ensureBlock + "\t}\n"}}},
	{"accept-hour-read-once", "4b is not read again after a further generation was written", []edit{{blobGo, "\t// The note comes before the generation", "\tb.found = false\n\t// The note comes before the generation"}}},
	{"accept-hour-in-doubt-is-absent", "an hour's record that can't be read counts as absent", []edit{{blobGo, "\tcase err != nil:\n\t\treturn 0, b.p.failed(ctx, StepMarker, err)\n", "\tcase err != nil:\n\t\treturn 0, nil\n"}}},

	// Acceptance: damaged records, 403.
	{"accept-corrupt-manifest-is-conflict", "a manifest that does not parse counts as another frame's", []edit{{decideGo, "\tif err != nil {\n\t\treturn Result{}, b.p.corrupt(StepManifest, key, ReasonCorruptManifest, err)\n\t}\n\tres := ", "\t_ = err\n\tres := "}}},
	{"accept-foreign-manifest-is-conflict", "a manifest of another authority counts as another frame's", []edit{{decideGo, "case there.AuthorityID != ours.AuthorityID:", "case there.AuthorityID == \"\":"}}},
	{"accept-misplaced-manifest-is-conflict", "a manifest of another identity counts as another frame's", []edit{{decideGo, "case there.Identity != ours.Identity:", "case there.Identity.Agent == \"\":"}}},
	{"accept-damaged-manifest-is-tried-for-ever", "a manifest that is damaged at rest is taken for a store that is down", []edit{{decideGo, "case errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) && ctx.Err() == nil:", "case created && err != nil:"}}},
	{"accept-marker-must-parse", "a marker that does not parse counts as absent", []edit{
		{blobGo, "err := b.p.checkExists(ctx, layout.Condemned(b.sha, b.gen))\n\tswitch {", "body, _, err := b.p.store.Get(ctx, layout.Condemned(b.sha, b.gen), objstore.GetOptions{})\n\tif perr := CondemnedKind.Unmarshal(body, new(CondemnedMarker)); err == nil && perr != nil {\n\t\treturn false, nil\n\t}\n\tswitch {"}}},
	{"accept-damaged-marker-is-tried-for-ever", "a marker that is damaged at rest is taken for a store that is down", []edit{{blobGo, "\tcase err == nil, errors.Is(err, objstore.ErrChecksum):\n\t\treturn true, nil", "\tcase err == nil:\n\t\treturn true, nil"}}},
	{"accept-403-marker-is-absent", "a 403 of the marker counts as absence", []edit{{blobGo, "case errors.Is(err, objstore.ErrNotFound):\n\t\treturn false, nil", "case errors.Is(err, objstore.ErrNotFound), errors.Is(err, objstore.ErrDenied):\n\t\treturn false, nil"}}},
	{"accept-403-is-refused-for-good", "a 403 ends the batch, not the collector", []edit{{"internal/acceptance/accept/call.go", "return p.retry(ReasonStoreDenied, err)", "return &RefusedError{Reason: ReasonInvalidSubmission, Err: err}"}}},

	// Answers without a marker read.
	{"epochs-no-barrier", "a collection does not wait for the runs of collectors", []edit{{announceGo, "		left, err := c.cross(ctx, epoch)\n", "		left, err := int(0*epoch), error(nil)\n		_ = c.cross\n"}}},
	{"epochs-not-named", "what is condemned is in no epoch", []edit{{announceGo, "c.epochs.Name(ctx, c.appender(), frames)", "c.epochs.Name(ctx, c.appender(), frames[:0])"}}},
	{"epochs-proof-before-barrier", "the proof comes before the runs have come to the epoch", []edit{
		{executeGo, "	if err := x.announce(ctx, condemned); err != nil {\n		return err\n	}\n	for _, k := range condemned {\n		x.settle(ctx, k)\n	}\n", "	var sound []Candidate\n	for _, k := range condemned {\n		if kept := x.c.prove(ctx, &k, k.id); kept == nil {\n			sound = append(sound, k)\n		}\n	}\n	if err := x.announce(ctx, condemned); err != nil {\n		return err\n	}\n	for _, k := range sound {\n		x.settle(ctx, k)\n	}\n"},
		{executeGo, secondProof, ""}}},
	{"epochs-first-without-markers", "the first epoch does not have what was condemned before", []edit{{namesGo, "			if add, err = condemned(ctx, w.Store, names); err != nil {\n", "			if _, err = condemned(ctx, w.Store, names); err != nil {\n"}}},
	{"epochs-answer-before-segment", "an answer without a marker read does not wait for its segment", []edit{{protocolGo, "	if res.Position, err = p.awaitEntry(ctx, entry); err != nil {", "	if hopes {\n		return res, nil\n	}\n	if res.Position, err = p.awaitEntry(ctx, entry); err != nil {"}}},
	{"epochs-no-hour", "a duplicate that is spared the marker is spared the hour's record of retention as well", []edit{{blobGo, "		if b.gen >= next {\n			b.p.events.markerSpared()", "		if b.gen >= next || spared {\n			b.p.events.markerSpared()"}}},
	{"epochs-unnamed-passes", "a run that has named no epoch yet lets a collection pass", []edit{{barrierGo, "case s.Closed, !s.Epochs, s.Epoch >= b.epoch:", "case s.Closed, s.Epoch == 0, s.Epoch >= b.epoch:"}}},

	// The mode local_spool.
	{"spool-name-not-synced", "the answer comes before the file's name is durable", []edit{{spoolGo, "\tif err := s.cfg.FS.SyncDir(filepath.Dir(to)); err != nil {\n\t\treturn s.fail(err)\n\t}\n", ""}}},
	{"spool-hash-not-compared", "two frames of one identity count as the same", []edit{{spoolGo, "case there.manifest.FrameSHA256 != sub.SHA256:", "case there.manifest.RecordCount != sub.Records:"}}},
	{"spool-loser-not-kept", "a conflict is answered without the loser's bytes", []edit{{spoolGo, "\te, err := s.store(sub, path)\n\tif err != nil {\n\t\treturn accept.Result{}, err\n\t}\n\ts.mu.Lock()\n\ts.losers = append(s.losers, e)\n\ts.mu.Unlock()\n\treturn res, nil", "\treturn res, nil"}}},
	{"spool-watermark-not-looked-at", "a range that has landed is decided again by the spool", []edit{{spoolGo, "case there == nil && b.any && sub.Identity.SeqStart <= b.landed:", "case there == nil && b.any && sub.Identity.SeqStart > b.landed:"}}},
	{"spool-no-watermark", "a batch leaves without a watermark", []edit{{landerGo, "if err := s.raiseWatermark(b, marks[b]); err != nil {", "if err := error(nil); err != nil {"}}},
	{"spool-watermark-in-memory", "a watermark does not survive a crash", []edit{{bootsGo, "\tif err := s.replaceLocked(dir, landedFile, fmt.Appendf(nil, \"%020d\", seq)); err != nil {\n\t\treturn err\n\t}\n", ""}}},
	{"spool-watermark-not-read", "a watermark is not read at a start", []edit{{bootsGo, "return b, s.loadLanded(dir, b)", "return b, nil"}}},
	{"spool-leaves-before-watermark", "the watermark comes after the file is gone", []edit{
		{landerGo, "\tfor _, b := range slices.SortedFunc(maps.Keys(marks), identity.Boot.Compare) {\n\t\tif err := s.raiseWatermark(b, marks[b]); err != nil {\n\t\t\treturn fmt.Errorf(\"raise landing watermark of %s: %w\", b, err)\n\t\t}\n\t}\n\tfailpoint.Hit(\"ingest.spool.trim.marked\")\n\tvar errs []error\n", "\tfailpoint.Hit(\"ingest.spool.trim.marked\")\n\tvar errs []error\n"},
		{landerGo, "\t\t\tev.Landed(e.manifest.Identity, o.outcome)\n\t\t}\n\t}\n\treturn errors.Join(errs...)", "\t\t\tev.Landed(e.manifest.Identity, o.outcome)\n\t\t}\n\t}\n\tfor _, b := range slices.SortedFunc(maps.Keys(marks), identity.Boot.Compare) {\n\t\tif err := s.raiseWatermark(b, marks[b]); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\treturn errors.Join(errs...)"}}},
	{"spool-retry-counts-as-landed", "a landing that the store did not answer counts as done", []edit{{landerGo, "\treturn landing{}, err\n}\n\n// blocksOneBatch", "\treturn landing{outcome: accept.Duplicate}, nil\n}\n\n// blocksOneBatch"}}},
	{"spool-refused-not-parked", "a batch that the store refuses for good is dropped", []edit{{landerGo, "lost := o.refused != nil || o.outcome == accept.Conflict", "lost := o.outcome == accept.Conflict"}}},
	{"spool-losers-do-not-land", "a quarantined frame never gets its record", []edit{{landerGo, "if err := l.land(ctx, group, true); err != nil {", "if err := l.land(ctx, group[:0], true); err != nil {"}}},
	{"spool-losers-forgotten", "a start does not take quarantined frames in", []edit{{recoverGo, "\t\t\ts.losers = append(s.losers, e)\n", "\t\t\t_ = e\n"}}},
	{"spool-no-claim", "a clone with the same boot id: claims are not compared", []edit{{bootsGo, "if b.spoolID != spoolID || b.clash {", "if b.clash {"}}},
	{"spool-claim-not-durable", "a clone with the same boot id: a claim does not survive a crash", []edit{{bootsGo, "return b, s.writeClaim(dir, id, spoolID)", "return b, nil"}}},

	// The reconciler.
	{"reconcile-by-time-first", "derived keys: the key by time comes before the reverse reference", []edit{{derivedGo, "\t\t{AcceptedByBlob, layout.AcceptedByBlob(m.FrameSHA256, m.Identity), AcceptedByBlobKind.Marshal(ref)},\n", ""}, {derivedGo, "\t\t{AcceptedByTime, layout.AcceptedByTime(at, m.Identity), accept.RecordOf(body)},\n", "\t\t{AcceptedByTime, layout.AcceptedByTime(at, m.Identity), accept.RecordOf(body)},\n\t\t{AcceptedByBlob, layout.AcceptedByBlob(m.FrameSHA256, m.Identity), AcceptedByBlobKind.Marshal(ref)},\n"}}},
	{"reconcile-misplaced-manifest", "derived keys of a manifest under another's key", []edit{{reconcileGo, "case m.Identity != id:", "case m.Identity.Agent == \"\":"}}},

	// What stands around the protocol.
	{"ledger-overlap-not-reported", "10-20, then 15-25 accepted", []edit{{ledgerGo, "\tif len(c.Overlap) > 0 {", "\tif len(c.Overlap) > 1<<20 {"}}},
	{"ledger-overlap-counted-twice", "10-20, then 15-25 accepted: a number counts twice", []edit{{viewGo, "return l.all.count() }", "return l.all.count() + l.overlaps.count() }"}}},
	{"probe-no-race", "the store checks, then writes: two creates both get 200", []edit{{qualifyGo, "\t{\"racing creates\", racingCreates},\n", ""}}},
	{"probe-no-policy-put", "an old client drops If-None-Match, and no policy refuses it", []edit{{probesGo, "\t{\"policy: unconditional put of a record\", deniedPut},\n", ""}}},
	{"probe-no-policy-delete", "a delete of a record re-opens its key", []edit{{probesGo, "\t{\"policy: delete of a record\", deniedDelete},\n", ""}}},
	{"probe-no-checksum", "the store takes a body that does not hash to what was said", []edit{{qualifyGo, "\t{\"checksum refusal\", checksumRefusal},\n", ""}}},
}
