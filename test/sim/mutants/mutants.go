package main

// mutant is one planted bug: edits to source files, each of which must apply exactly once.
type mutant struct {
	name  string
	about string // the race of the table in docs/protocol/acceptance.md or gc.md, or the step
	edits []edit
}

type edit struct{ file, old, new string }

const (
	protocolGo  = "pkg/accept/protocol.go"
	blobGo      = "pkg/accept/blob.go"
	decideGo    = "pkg/accept/decide.go"
	claimGo     = "pkg/accept/claim.go"
	authorityGo = "pkg/accept/authority.go"
	executeGo   = "pkg/gc/execute.go"
	proveGo     = "pkg/gc/prove.go"
	gcGo        = "pkg/gc/gc.go"
	ledgerGo    = "pkg/ledger/ledger.go"
	viewGo      = "pkg/ledger/view.go"
	qualifyGo   = "pkg/qualify/qualify.go"
)

const (
	settle       = "if err := b.settle(ctx); err != nil {"
	settleBlock  = "\tif err := b.settle(ctx); err != nil {\n\t\treturn Result{}, err\n\t}\n"
	ensureBlock  = "\tif err := b.ensure(ctx); err != nil {\n\t\treturn Result{}, err\n\t}\n"
	skipped      = "if err := error(nil); err != nil {"
	created      = "\t\tif err == nil {\n\t\t\treturn Result{Outcome: Accepted"
	existing     = "if errors.Is(err, objstore.ErrExists) {\n\t\t\tvar res Result"
	condemn      = "if err := x.c.condemn(ctx, k, x.plan); err != nil {"
	secondProof  = "\tif kept := x.c.prove(ctx, k, id); kept != nil {\n\t\treturn x.log(ctx, k, KeptBlob, kept.Reason, kept.Detail)\n\t}\n"
	removeMarker = "_ = x.c.cfg.Store.Delete(ctx, accept.CondemnedMarker{FrameSHA256: k.SHA256, Generation: k.Generation}.Key())\n"
	asDuplicate  = "return Result{Outcome: Duplicate, Manifest: m, ManifestKey: s.key, ManifestBytes: body}, nil\n"
)

var mutants = []mutant{
	// Acceptance: the marker (step 4).
	{"accept-no-marker", "a late manifest; a reused orphan; a long sleep: no marker is read", []edit{{protocolGo, settle, skipped}}},
	{"accept-no-marker-on-duplicate", "a crashed collector's manifest lands after its blob was collected", []edit{{protocolGo, settle, "if res.Outcome == Duplicate {\n\t\treturn res, nil\n\t}\n\t" + settle}}},
	{"accept-no-marker-on-accepted", "an old orphan is reused while it is collected", []edit{{protocolGo, settle, "if res.Outcome == Accepted {\n\t\treturn res, nil\n\t}\n\t" + settle}}},
	{"accept-no-marker-on-conflict", "the loser's blob is collected while it is quarantined", []edit{{protocolGo, settle, "if res.Outcome == Conflict {\n\t\treturn res, nil\n\t}\n\t" + settle}}},
	{"accept-marker-before-manifest", "a collector sleeps for days between blob and manifest; steps 3 and 4 swapped", []edit{
		{protocolGo, settle, skipped}, {protocolGo, "\tm, err := p.manifest(&b, s)\n", settleBlock + "\tm, err := p.manifest(&b, s)\n"}}},
	{"accept-marker-before-quarantine", "the loser's blob is collected while it is quarantined; steps 3b and 4 swapped", []edit{
		{protocolGo, settle, skipped}, {protocolGo, "\tif res.Outcome == Conflict {\n", settleBlock + "\tif res.Outcome == Conflict {\n"}}},
	{"accept-marker-read-once", "the next generation's own marker is not read (4a)", []edit{{blobGo, "\t\tif err := b.ensure(ctx); err != nil {\n\t\t\treturn err\n\t\t}", "\t\treturn b.ensure(ctx)"}}},
	{"accept-marker-in-doubt-is-absent", "a marker that can't be read counts as absent", []edit{{blobGo, "case errors.Is(err, objstore.ErrNotFound):\n\t\t\treturn false, nil", "case err != nil:\n\t\t\treturn false, nil"}}},
	{"accept-marker-of-another-generation", "the marker of another generation is read", []edit{{blobGo, "layout.Condemned(b.sha, b.gen))", "layout.Condemned(b.sha, b.gen+1))"}}},
	{"accept-condemned-generation-rewritten", "a timed-out delete lands after the blob was written anew: the generation is reused", []edit{
		{blobGo, "\t\tif err := b.skip(SkipCondemned); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := b.ensure(ctx); err != nil {\n\t\t\treturn err\n\t\t}", "\t\treturn b.ensure(ctx)"}}},
	{"accept-head-in-place-of-marker", "a HEAD of the blob before the answer, and no marker", []edit{
		{blobGo, "condemned, err := b.condemned(ctx)", "_, herr := b.p.head(ctx, layout.Blob(b.sha, b.gen))\n\t\tcondemned, err := errors.Is(herr, objstore.ErrNotFound), error(nil)"}}},
	{"accept-generation-does-not-grow", "a condemned generation is tried for ever", []edit{{blobGo, "\tb.gen++\n", ""}}},

	// Acceptance: the blob (step 2).
	{"accept-existing-blob-trusted", "an existing blob is truncated or garbage: no look at all", []edit{{blobGo, "why, err := b.verify(ctx, s.key)", "why, err := Skip(\"\"), error(nil)"}}},
	{"accept-existing-blob-by-size", "an existing blob is garbage of the right size", []edit{{blobGo, "info.Size == int64(len(b.frame)) && info.SHA256 == b.sha:", "info.Size == int64(len(b.frame)):"}}},
	{"accept-unhashed-blob-trusted", "an existing blob is garbage, and the store keeps no checksum", []edit{{blobGo, "!bytes.Equal(got, b.frame)", "!bytes.Equal(got, b.frame) && len(got) != len(b.frame)"}}},
	{"accept-blob-without-checksum", "the body is damaged on the way, and the store can't tell", []edit{{blobGo, "objstore.PutOptions{SHA256: b.sha, ", "objstore.PutOptions{"}}},
	{"accept-unknown-blob-is-created", "an unknown outcome of the blob counts as created", []edit{{blobGo, "case err == nil:\n\t\t\tb.p.events.blobCreated", "case err == nil, errors.Is(err, objstore.ErrUnknown):\n\t\t\tb.p.events.blobCreated"}}},
	{"accept-409-blob-exists", "a 409 of the blob counts as evidence that it is there", []edit{{blobGo, "\t\tcase errors.Is(err, objstore.ErrExists):\n\t\t\twhy", "\t\tcase errors.Is(err, objstore.ErrConflict):\n\t\t\treturn true, nil\n\t\tcase errors.Is(err, objstore.ErrExists):\n\t\t\twhy"}}},
	{"accept-manifest-before-blob", "steps 2 and 3 swapped", []edit{
		{protocolGo, ensureBlock, ""}, {protocolGo, "\tif res.Outcome == Conflict {\n", ensureBlock + "\tif res.Outcome == Conflict {\n"}}},
	{"accept-no-blob", "step 2 left out", []edit{{protocolGo, "if err := b.ensure(ctx); err != nil {", skipped}}},

	// Acceptance: the manifest (step 3).
	{"accept-unknown-manifest-is-accepted", "an unknown outcome of the manifest counts as accepted", []edit{{decideGo, created, "\t\tif err == nil || errors.Is(err, objstore.ErrUnknown) {\n\t\t\treturn Result{Outcome: Accepted"}}},
	{"accept-404-after-unknown-is-final", "timeout, GET says 404, the PUT lands later", []edit{
		{decideGo, "neither is final. Create again.\n\t\t}\n", "neither is final. Create again.\n\t\t}\n\t\tif errors.Is(err, objstore.ErrUnknown) {\n\t\t\tif _, gerr := b.p.get(ctx, s.key, MaxRecordBytes); errors.Is(gerr, objstore.ErrNotFound) {\n\t\t\t\treturn Result{}, &RefusedError{Reason: ReasonInvalidSubmission, Err: gerr}\n\t\t\t}\n\t\t}\n"}}},
	{"accept-own-write-is-duplicate", "a lost 200, retried, gives 412: the attempt id is not looked at", []edit{{decideGo, "if there.AttemptID == m.AttemptID {", "if there.AttemptID == \"\" {"}}},
	{"accept-same-hash-is-accepted", "another's write counts as our own", []edit{{decideGo, "if there.AttemptID == m.AttemptID {", "if there.AttemptID != \"\" {"}}},
	{"accept-attempt-id-per-request", "a lost 200, retried, gives 412: each request has an attempt id of its own", []edit{
		{decideGo, "\tbody := m.Marshal()\n", ""}, {decideGo, "\t\terr := b.p.create(ctx, s.key, body, jsonContent)\n" + created, "\t\tm.AttemptID = m.AttemptID[1:] + m.AttemptID[:1]\n\t\tbody := m.Marshal()\n\t\terr := b.p.create(ctx, s.key, body, jsonContent)\n" + created}}},
	{"accept-412-is-duplicate", "the existing manifest is not read", []edit{{decideGo, existing, "if errors.Is(err, objstore.ErrExists) {\n\t\t\t" + asDuplicate + "\t\t}\n\t\t" + existing}}},
	{"accept-409-is-duplicate", "a 409 of the manifest counts as evidence that it is there", []edit{{decideGo, existing, "if errors.Is(err, objstore.ErrConflict) {\n\t\t\t" + asDuplicate + "\t\t}\n\t\t" + existing}}},
	{"accept-hash-not-compared", "two frames of one identity count as the same", []edit{{decideGo, "\tif there.FrameSHA256 == m.FrameSHA256 {", "\tif there.RecordCount == m.RecordCount {"}}},
	{"accept-no-quarantine", "step 3b left out", []edit{{protocolGo, "\tif res.Outcome == Conflict {\n", "\tif res.Outcome == 0 {\n"}}},
	{"accept-unknown-quarantine-is-done", "an unknown outcome of the quarantine record counts as written", []edit{{decideGo, "if err == nil || errors.Is(err, objstore.ErrExists) {", "if err == nil || errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrUnknown) {"}}},
	{"accept-quarantine-names-the-winner", "the quarantine record's key has the wrong hash", []edit{{decideGo, "layout.Quarantine(m.Identity, b.sha)", "layout.Quarantine(m.Identity, m.FrameSHA256)"}}},

	// Acceptance: boot and authority (step 1).
	{"accept-no-boot-claim", "a clone with the same boot id: step 1 left out", []edit{{protocolGo, "if err := p.claimBoot(ctx, s.Identity.BootOf(), s.SpoolID); err != nil {", skipped}}},
	{"accept-boot-owner-not-compared", "a clone with the same boot id", []edit{{claimGo, "\tif owner != spoolID {", "\tif owner == \"\" {"}}},
	{"accept-unknown-boot-is-ours", "an unknown outcome of the boot record counts as ours", []edit{{claimGo, "\t\tif err == nil {\n\t\t\tp.events.bootClaimed", "\t\tif err == nil || errors.Is(err, objstore.ErrUnknown) {\n\t\t\tp.events.bootClaimed"}}},
	{"accept-authority-not-compared", "two buckets or prefixes", []edit{{authorityGo, "if r.AuthorityID != id {", "if r.AuthorityID == \"\" {"}}},
	{"accept-unknown-authority-is-ours", "two buckets or prefixes: an unknown outcome counts as ours", []edit{{authorityGo, "jsonContent); err == nil {", "jsonContent); err == nil || errors.Is(err, objstore.ErrUnknown) {"}}},

	// Garbage collection.
	{"gc-no-marker", "an old orphan is reused while it is collected: step 2 left out", []edit{{executeGo, condemn, skipped}}},
	{"gc-proof-before-marker", "an old orphan is reused while it is collected: steps 2 and 3 swapped", []edit{{executeGo, secondProof, ""}}},
	{"gc-marker-after-delete", "steps 2 and 4 swapped", []edit{
		{executeGo, condemn, "if err := x.c.remove(ctx, k); err != nil {"}, {executeGo, "\tif err := x.c.remove(ctx, k); err != nil {\n\t\treturn x.log(ctx, k, DeleteUnknown", "\tif err := x.c.condemn(ctx, k, x.plan); err != nil {\n\t\treturn x.log(ctx, k, DeleteUnknown"}}},
	{"gc-unknown-marker-is-confirmed", "the marker lands after the proof", []edit{{executeGo, "\tif exists(err) {", "\tif exists(err) || errors.Is(err, objstore.ErrUnknown) {"}, {gcGo, "func exists(err error) bool { return errors.Is(err, objstore.ErrExists) }", "func exists(err error) bool {\n\treturn errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrUnknown)\n}"}}},
	{"gc-409-marker-is-confirmed", "a 409 of the marker counts as evidence that it is there", []edit{{gcGo, "func exists(err error) bool { return errors.Is(err, objstore.ErrExists) }", "func exists(err error) bool {\n\treturn errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrConflict)\n}"}}},
	{"gc-marker-of-generation-0", "the marker names another generation than the delete", []edit{{executeGo, "FrameSHA256: k.SHA256, Generation: k.Generation,\n", "FrameSHA256: k.SHA256,\n"}}},
	{"gc-proof-without-manifest", "the accepted manifest is not read", []edit{{proveGo, "stored, err := c.read(ctx, layout.Accepted(id))", "stored, err := []byte(nil), error(objstore.ErrNotFound)"}}},
	{"gc-proof-without-quarantine", "the quarantine record is not read", []edit{{proveGo, "switch _, err := c.read(ctx, quarantine); {", "switch err := error(objstore.ErrNotFound); {"}}},
	{"gc-unanswered-is-absent", "a read that fails counts as absence", []edit{{gcGo, "func notFound(err error) bool { return errors.Is(err, objstore.ErrNotFound) }", "func notFound(err error) bool {\n\treturn errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrUnavailable)\n}"}}},
	{"gc-age-proves", "a collector sleeps for days: what is old is deleted", []edit{{executeGo, "\tid, kept := x.c.whose(ctx, k)\n", "\tif x.c.cfg.Clock.Now().Sub(k.LastModified).Hours() > 0.9 {\n\t\tif err := x.c.remove(ctx, k); err == nil {\n\t\t\treturn x.log(ctx, k, Deleted, \"\", \"\")\n\t\t}\n\t}\n\tid, kept := x.c.whose(ctx, k)\n"}}},
	{"gc-deletes-all-generations", "a delete of a generation without a marker", []edit{
		{executeGo, "\t\"lightmetrics.dev/lightmetrics/pkg/objstore\"\n", "\t\"lightmetrics.dev/lightmetrics/pkg/layout\"\n\t\"lightmetrics.dev/lightmetrics/pkg/objstore\"\n"},
		{executeGo, "\treturn c.attempt(ctx, func(ctx context.Context) error { return c.cfg.Store.Delete(ctx, k.Key) }, notFound)", "\tfor g := range uint32(3) {\n\t\tif err := c.cfg.Store.Delete(ctx, layout.Blob(k.SHA256, g)); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\treturn nil"}}},
	{"gc-marker-removed-after-delete", "a timed-out delete lands late, and its marker is gone", []edit{{executeGo, "\treturn x.log(ctx, k, Deleted, \"\", \"\")", "\t" + removeMarker + "\treturn x.log(ctx, k, Deleted, \"\", \"\")"}}},
	{"gc-marker-removed-when-kept", "two collections: one takes back the marker that the other relies on", []edit{{executeGo, secondProof, "\tif kept := x.c.prove(ctx, k, id); kept != nil {\n\t\t" + removeMarker + "\t\treturn x.log(ctx, k, KeptBlob, kept.Reason, kept.Detail)\n\t}\n"}}},
	{"gc-other-frame-keeps", "orphans of a conflict are never collected", []edit{{proveGo, "if m.FrameSHA256 == k.SHA256 {", "if m.Identity == id {"}}},
	{"gc-never-deletes", "step 4 left out", []edit{{executeGo, "if err := x.c.remove(ctx, k); err != nil {", skipped}}},

	// What stands around the protocol.
	{"ledger-overlap-not-reported", "10-20, then 15-25 accepted", []edit{{ledgerGo, "\tif len(c.Overlap) > 0 {", "\tif len(c.Overlap) > 1<<20 {"}}},
	{"ledger-overlap-counted-twice", "10-20, then 15-25 accepted: a number counts twice", []edit{{viewGo, "return l.all.count() }", "return l.all.count() + l.overlaps.count() }"}}},
	{"probe-no-race", "the store checks, then writes: two creates both get 200", []edit{{qualifyGo, "\t{\"racing creates\", racingCreates},\n", ""}}},
	{"probe-no-policy-put", "an old client drops If-None-Match, and no policy refuses it", []edit{{qualifyGo, "\t{\"policy: unconditional put of a record\", deniedPut},\n", ""}}},
	{"probe-no-policy-delete", "a delete of a record re-opens its key", []edit{{qualifyGo, "\t{\"policy: delete of a record\", deniedDelete},\n", ""}}},
	{"probe-no-checksum", "the store takes a body that does not hash to what was said", []edit{{qualifyGo, "\t{\"checksum refusal\", checksumRefusal},\n", ""}}},
}
