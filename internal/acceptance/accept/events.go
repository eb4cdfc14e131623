package accept

// Step is a stable name of a request of the protocol, for metric labels.
type Step string

// Steps.
const (
	StepBoot       Step = "boot"
	StepBlob       Step = "blob"
	StepManifest   Step = "manifest"
	StepQuarantine Step = "quarantine"
	StepMarker     Step = "marker"
	StepAuthority  Step = "authority"
	// StepAffirmation is of the mode global alone.
	StepAffirmation Step = "affirmation"
)

// Steps lists all.
func Steps() []Step {
	return []Step{StepBoot, StepBlob, StepManifest, StepQuarantine, StepMarker, StepAuthority, StepAffirmation}
}

// Skip says why a generation of a blob was passed over.
type Skip string

// Skips.
const (
	SkipCorrupt   Skip = "corrupt"   // the object is there, its size or hash is not the frame's
	SkipGone      Skip = "gone"      // the create said exists, the read said absent: collected in between
	SkipCondemned Skip = "condemned" // it has a condemned marker
)

// Events are callbacks for metrics and logs. Nil fields are
// skipped. They are called synchronously and concurrently, so they must be quick and safe for concurrent use.
type Events struct {
	// BlobCreated: this call wrote the generation.
	BlobCreated func(key string, bytes int)
	// BlobExists: a generation existed already and its bytes are right.
	BlobExists func(key string)
	// GenerationSkipped: a generation can't be relied on; the next is tried.
	GenerationSkipped func(key string, why Skip)
	// BlobUnneeded: the manifest that exists carries the frame, so nothing refers to the generation that this call
	// has created or found.
	BlobUnneeded func(key string)
	// MarkerSpared: the journal said that the blob is not condemned, so no marker was read.
	MarkerSpared func()
	// Affirmed: this call wrote that a manifest stands for a later claim.
	Affirmed func(key string)
	// ClaimTakenOver: a claim of another region is this one's now; ClaimReplaced: a claim is one for the frame that the region has.
	ClaimTakenOver, ClaimReplaced func()
	// ManifestRestored: the linearizer says that the region has accepted the batch, and its manifest was not there.
	ManifestRestored func(key string)
	// OwnWrite: a create said exists and the object is this call's own, after a lost answer.
	OwnWrite func(key string)
	// Quarantined: this call wrote the quarantine record of a frame that lost a conflict.
	Quarantined func(key string)
	// BootClaimed: this call wrote the boot record.
	BootClaimed func(key string)
	// BootClash: the boot id belongs to another spool.
	BootClash func(key string)
	// CorruptRecord: a record that a decision needs can't be used; an operator must check it.
	CorruptRecord func(step Step, key string, err error)
	// NotReady: the store refuses what the protocol needs (credentials, policy,
	// bucket, unsupported request): an alarm. After STORE_DENIED the collector must report that it is not ready.
	NotReady func(step Step, err error)
}

func (e *Events) blobCreated(key string, n int) {
	if e.BlobCreated != nil {
		e.BlobCreated(key, n)
	}
}

func (e *Events) blobExists(key string) {
	if e.BlobExists != nil {
		e.BlobExists(key)
	}
}

func (e *Events) generationSkipped(key string, why Skip) {
	if e.GenerationSkipped != nil {
		e.GenerationSkipped(key, why)
	}
}

func (e *Events) blobUnneeded(key string) {
	if e.BlobUnneeded != nil {
		e.BlobUnneeded(key)
	}
}

func (e *Events) markerSpared() {
	if e.MarkerSpared != nil {
		e.MarkerSpared()
	}
}

func (e *Events) ownWrite(key string) {
	if e.OwnWrite != nil {
		e.OwnWrite(key)
	}
}

func (e *Events) quarantined(key string) {
	if e.Quarantined != nil {
		e.Quarantined(key)
	}
}

func (e *Events) bootClaimed(key string) {
	if e.BootClaimed != nil {
		e.BootClaimed(key)
	}
}

func (e *Events) bootClash(key string) {
	if e.BootClash != nil {
		e.BootClash(key)
	}
}

func (e *Events) corruptRecord(step Step, key string, err error) {
	if e.CorruptRecord != nil {
		e.CorruptRecord(step, key, err)
	}
}

func (e *Events) notReady(step Step, err error) {
	if e.NotReady != nil {
		e.NotReady(step, err)
	}
}

func (e *Events) affirmed(key string) {
	if e.Affirmed != nil {
		e.Affirmed(key)
	}
}

func (e *Events) manifestRestored(key string) {
	if e.ManifestRestored != nil {
		e.ManifestRestored(key)
	}
}

func (e *Events) claimTakenOver(ok bool) {
	if ok && e.ClaimTakenOver != nil {
		e.ClaimTakenOver()
	}
}

func (e *Events) claimReplaced(ok bool) {
	if ok && e.ClaimReplaced != nil {
		e.ClaimReplaced()
	}
}
