package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// The bytes of segments and of folded files, docs/format/journal.md: a fixed header, then a
// payload of columns for each boot. Entries have one order and one encoding, so equal files are
// equal bytes but for the compression.

// FileKind is the kind of segments and folded files, in errors. They are no JSON, so it has no schema: the
// version stands in the magic.
var FileKind = record.Kind{Title: "journal file", MaxBytes: MaxFileBytes, Exact: true}

// Bounds of a file.
const (
	// MaxFileBytes bounds the stored bytes, and MaxPayloadBytes what they decompress to.
	MaxFileBytes    = 16 << 20
	MaxPayloadBytes = 16 << 20
	// MaxSegmentEntries and MaxFoldedEntries bound the entries of a segment and of a folded file.
	// With the longest agent and boot ids, all different, both are within MaxPayloadBytes.
	MaxSegmentEntries = 10_000
	MaxFoldedEntries  = 40_000
)

// Kinds of files.
type fileKind uint8

const (
	kindSegment fileKind = 1
	kindFolded  fileKind = 2
)

// Flags of the header.
const (
	flagZstd   = 1 << 0
	flagOpens  = 1 << 1
	flagClosed = 1 << 2
	flagFenced = 1 << 3
	// flagEpochs is of version 4: the run names epochs of condemned names, which version 3 says by itself.
	flagEpochs = 1 << 4
)

// fileMagic begins every file: a byte that is not text, a name and the version of the format.
var fileMagic = [6]byte{0x89, 'L', 'M', 'J', 'N', versionBlobs}

// Versions of the format. A file is of the second one only if it has an entry of a frame that a record carries, so that
// where there are none an earlier release reads everything. Segments of a run that names epochs are of the third, all of them
// but a fence; their entries have the form of the second. No folded file is of the third. A file with an entry of a batch
// that is elsewhere is of the fourth, whatever else it has: a release that took it for a batch would count it twice.
const (
	versionBlobs     = 1
	versionInline    = 2
	versionEpochs    = 3
	versionElsewhere = 4
)

// headerBytes: magic, kind, flags, length of the payload, CRC32C of everything else.
const headerBytes = 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Role is what a writer is.
type Role uint8

// Roles. The numbers are part of the format.
const (
	RoleCollector Role = 1
	// RoleSpooler is a collector that accepts on its own disk (local_spool). While its run is open it
	// may have accepted batches that are in no segment yet.
	RoleSpooler    Role = 2
	RoleReconciler Role = 3
)

func (r Role) String() string {
	switch r {
	case RoleCollector:
		return "collector"
	case RoleSpooler:
		return "spooler"
	case RoleReconciler:
		return "reconciler"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

func (r Role) valid() bool { return r >= RoleCollector && r <= RoleReconciler }

// Opening is in segment 0 and says whose run it is.
type Opening struct {
	// Writer is the id of the service, 1 to 256 bytes of UTF-8.
	Writer string
	Role   Role
	// Authority is the id of the acceptance authority, as in manifests.
	Authority string
	// At is the writer's time, Unix nanoseconds: for people, no decision depends on it.
	At int64
}

const maxNameBytes = 256

func (o *Opening) validate() error {
	for what, s := range map[string]string{"writer": o.Writer, "authority": o.Authority} {
		if s == "" || len(s) > maxNameBytes || !utf8.ValidString(s) {
			return fmt.Errorf("the %s %.80q is not 1 to %d bytes of UTF-8", what, s, maxNameBytes)
		}
	}
	if !o.Role.valid() {
		return fmt.Errorf("role %d", o.Role)
	}
	return nil
}

// Segment is one object of a run.
type Segment struct {
	Position
	// Opening is there in segment 0 and in no other.
	Opening *Opening
	// Closed: the writer ended its run with this segment. Fenced: somebody else ended the run here, so
	// there are no entries. A run is complete with either.
	Closed, Fenced bool
	// Epochs: the run names epochs of condemned names. All its segments say so, and those of other runs do not; a
	// fence is nobody's. Epoch is the newest one that the writer held when the segment's bytes were fixed; it never falls within a run.
	// 0 names none, as segment 0 always does: docs/protocol/gc.md.
	Epochs bool
	Epoch  uint64
	// Entries in the order of Entry.Compare.
	Entries []Entry
}

// Ends reports whether the run ends with this segment.
func (s *Segment) Ends() bool { return s.Closed || s.Fenced }

func (s *Segment) validate() error {
	switch {
	case (s.Opening != nil) != (s.Segment == 0):
		return fmt.Errorf("segment %d: an opening belongs to segment 0", s.Segment)
	case s.Fenced && (s.Closed || len(s.Entries) > 0 || s.Segment == 0):
		return fmt.Errorf("segment %d: a fence has no entries, closes nothing, and is never segment 0", s.Segment)
	case s.Epochs && (s.Fenced || s.Opening != nil && s.Opening.Role != RoleCollector):
		return fmt.Errorf("segment %d: only the run of a collector names epochs", s.Segment)
	case s.Epoch > 0 && (!s.Epochs || s.Segment == 0):
		return fmt.Errorf("segment %d: epoch %d of a run that names none, or before it is known to be open", s.Segment, s.Epoch)
	// A run whose collector has nothing to say names a new epoch all the same, because garbage collection waits for it.
	case !s.Closed && !s.Fenced && len(s.Entries) == 0 && s.Epoch == 0 && (s.Opening == nil || s.Opening.Role != RoleSpooler):
		// A spooler opens its run before it has anything to say: that it may spool is what its run says.
		return fmt.Errorf("segment %d is empty", s.Segment)
	case len(s.Entries) > MaxSegmentEntries:
		return fmt.Errorf("segment %d: %d entries, at most %d", s.Segment, len(s.Entries), MaxSegmentEntries)
	}
	if s.Opening != nil {
		return s.Opening.validate()
	}
	return nil
}

// Marshal writes the segment. It sorts the entries, and drops repeated ones. An invalid segment is an error.
func (s *Segment) Marshal() ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("journal segment %s: %w", s.Position, err)
	}
	p := append([]byte(nil), s.Run[:]...)
	p = binary.AppendUvarint(p, s.Segment)
	flags := byte(0)
	if o := s.Opening; o != nil {
		flags |= flagOpens
		p = appendText(p, o.Writer)
		p = append(p, byte(o.Role))
		p = appendText(p, o.Authority)
		p = binary.AppendVarint(p, o.At)
	}
	if s.Closed {
		flags |= flagClosed
	}
	if s.Fenced {
		flags |= flagFenced
	}
	version := versionOf(s.Entries)
	switch {
	case s.Epochs && version == versionElsewhere:
		flags |= flagEpochs
	case s.Epochs:
		version = versionEpochs
	}
	if s.Epochs {
		p = binary.AppendUvarint(p, s.Epoch)
	}
	p, err := appendEntries(p, s.Entries, version)
	if err != nil {
		return nil, fmt.Errorf("journal segment %s: %w", s.Position, err)
	}
	return wrapFile(kindSegment, flags, version, p)
}

// ParseSegment reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseSegment(b []byte) (*Segment, error) {
	flags, version, p, err := unwrapFile(b, kindSegment, flagOpens|flagClosed|flagFenced|flagEpochs)
	if err != nil {
		return nil, err
	}
	if flags&flagEpochs != 0 && version != versionElsewhere {
		return nil, FileKind.Corrupt("", "flags %#x in version %d", flags, version)
	}
	r := reader{b: p, version: version}
	s := &Segment{Closed: flags&flagClosed != 0, Fenced: flags&flagFenced != 0}
	copy(s.Run[:], r.take(len(s.Run)))
	s.Segment = r.uvarint()
	if flags&flagOpens != 0 {
		s.Opening = &Opening{Writer: r.text(maxNameBytes)}
		s.Opening.Role = Role(r.byte())
		s.Opening.Authority, s.Opening.At = r.text(maxNameBytes), r.varint()
	}
	if s.Epochs = version == versionEpochs || flags&flagEpochs != 0; s.Epochs {
		s.Epoch = r.uvarint()
	}
	s.Entries = r.entries(MaxSegmentEntries)
	if err := r.end(); err != nil {
		return nil, FileKind.Wrap("", err)
	}
	return s, FileKind.Wrap("", s.validate())
}

// marshalFolded writes a folded file of sorted entries.
func marshalFolded(entries []Entry) ([]byte, error) {
	if len(entries) == 0 || len(entries) > MaxFoldedEntries {
		return nil, fmt.Errorf("folded file: %d entries, 1 to %d", len(entries), MaxFoldedEntries)
	}
	version := versionOf(entries)
	p, err := appendEntries(nil, entries, version)
	if err != nil {
		return nil, fmt.Errorf("folded file: %w", err)
	}
	return wrapFile(kindFolded, 0, version, p)
}

// ParseFolded reads a folded file. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseFolded(b []byte) ([]Entry, error) {
	_, version, p, err := unwrapFile(b, kindFolded, 0)
	if err != nil {
		return nil, err
	}
	r := reader{b: p, version: version}
	es := r.entries(MaxFoldedEntries)
	if err := r.end(); err != nil {
		return nil, FileKind.Wrap("", err)
	}
	if len(es) == 0 {
		return nil, FileKind.Corrupt("", "a folded file without entries")
	}
	return es, nil
}

// codecs are reused. The encoder's level is fixed, because golden files have its output.
var encoders = sync.Pool{New: func() any {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		// The options are constants: an error would be a defect of this program, not of the data.
		panic("journal: zstd encoder options: " + err.Error())
	}
	return z
}}

var decoders = sync.Pool{New: func() any {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(MaxPayloadBytes))
	if err != nil {
		panic("journal: zstd decoder options: " + err.Error())
	}
	return z
}}

// versionOf is the version of a file with the entries.
func versionOf(entries []Entry) byte {
	version := byte(versionBlobs)
	for i := range entries {
		switch {
		case entries[i].Outcome == Elsewhere:
			return versionElsewhere
		case entries[i].Inline:
			version = versionInline
		}
	}
	return version
}

func wrapFile(kind fileKind, flags, version byte, payload []byte) ([]byte, error) {
	if len(payload) > MaxPayloadBytes {
		return nil, fmt.Errorf("a payload of %d bytes, at most %d", len(payload), MaxPayloadBytes)
	}
	out := make([]byte, headerBytes, headerBytes+len(payload))
	z := encoders.Get().(*zstd.Encoder)
	out = z.EncodeAll(payload, out)
	encoders.Put(z)
	flags |= flagZstd
	// Hashes do not compress, so a small file is often smaller as it is.
	if len(out)-headerBytes >= len(payload) {
		out = append(out[:headerBytes], payload...)
		flags &^= flagZstd
	}
	copy(out, fileMagic[:])
	out[5] = version
	out[6], out[7] = byte(kind), flags
	binary.LittleEndian.PutUint32(out[8:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(out[12:], checksum(out))
	return out, nil
}

// checksum is over everything but itself.
func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[headerBytes:])
}

func unwrapFile(b []byte, kind fileKind, known byte) (flags, version byte, payload []byte, err error) {
	if len(b) < headerBytes || len(b) > headerBytes+MaxFileBytes || !bytes.Equal(b[:5], fileMagic[:5]) {
		return 0, 0, nil, FileKind.Corrupt("", "%d bytes are no journal file", len(b))
	}
	if version = b[5]; version != versionBlobs {
		// A version in between is one that this release reads.
		if version == 0 || version > versionElsewhere {
			return 0, 0, nil, FileKind.CheckFormat(version, versionElsewhere)
		}
		if kind == kindFolded && version == versionEpochs {
			return 0, 0, nil, FileKind.Corrupt("", "a folded file of version %d", version)
		}
	}
	if checksum(b) != binary.LittleEndian.Uint32(b[12:]) {
		return 0, 0, nil, FileKind.Corrupt("", "the checksum differs")
	}
	flags = b[7]
	// The checksum holds, so some release wrote this: only a newer one can have meant it.
	if b[6] != byte(kind) || flags&^(known|flagZstd) != 0 {
		return 0, 0, nil, FileKind.Corrupt("", "kind %d with flags %#x", b[6], flags)
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n > MaxPayloadBytes {
		return 0, 0, nil, FileKind.Corrupt("", "a payload of %d bytes, at most %d", n, MaxPayloadBytes)
	}
	payload = b[headerBytes:]
	if flags&flagZstd == 0 {
		if uint32(len(payload)) != n {
			return 0, 0, nil, FileKind.Corrupt("", "%d bytes of payload, the header says %d", len(payload), n)
		}
		return flags, version, payload, nil
	}
	// The frame must agree with the header, or the decoder would allocate what the frame claims.
	var h zstd.Header
	if err := h.Decode(payload); err != nil || h.Skippable || !h.HasFCS || h.FrameContentSize != uint64(n) || h.DictionaryID != 0 {
		return 0, 0, nil, FileKind.Corrupt("", "zstd: not one frame with a content of %d bytes", n)
	}
	z := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(z)
	out, err := z.DecodeAll(payload, make([]byte, 0, n))
	if err != nil || uint32(len(out)) != n {
		return 0, 0, nil, FileKind.Corrupt("", "zstd: %d of %d bytes: %v", len(out), n, err)
	}
	return flags, version, out, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendEntries writes entries grouped by boot, each group as columns. It sorts them in place.
func appendEntries(b []byte, entries []Entry, version byte) ([]byte, error) {
	slices.SortFunc(entries, func(x, y Entry) int { return x.Compare(&y) })
	entries = slices.Compact(entries)
	groups := 0
	for i := range entries {
		if err := entries[i].Validate(); err != nil {
			return nil, err
		}
		if i == 0 || entries[i].ID.BootOf() != entries[i-1].ID.BootOf() {
			groups++
		}
	}
	b = binary.AppendUvarint(b, uint64(groups))
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && entries[n].ID.BootOf() == entries[0].ID.BootOf() {
			n++
		}
		b = appendGroup(b, entries[:n], version)
		entries = entries[n:]
	}
	return b, nil
}

// appendGroup writes the entries of one boot. Columns of equal kind stand together, because they
// compress better than rows. Differences wrap around, so that every value has an encoding.
func appendGroup(b []byte, es []Entry, version byte) []byte {
	b = appendText(b, es[0].ID.Agent)
	b = appendText(b, es[0].ID.Boot)
	b = binary.AppendUvarint(b, uint64(len(es)))
	next := uint64(0)
	for i := range es { // a boot's numbers mostly continue, so this column is mostly zeros
		b = binary.AppendVarint(b, int64(es[i].ID.SeqStart-next))
		next = es[i].ID.SeqEnd + 1
	}
	for i := range es {
		b = binary.AppendUvarint(b, es[i].ID.SeqEnd-es[i].ID.SeqStart)
	}
	for i := range es {
		b = append(b, byte(es[i].Outcome))
	}
	for i := range es {
		if version == versionBlobs {
			b = binary.AppendUvarint(b, uint64(es[i].Generation))
		} else {
			b = binary.AppendUvarint(b, es[i].place())
		}
	}
	for i := range es {
		b = binary.AppendUvarint(b, es[i].Bytes)
	}
	last := int64(0)
	for i := range es {
		b = binary.AppendVarint(b, es[i].At-last)
		last = es[i].At
	}
	for i := range es {
		b = binary.AppendVarint(b, es[i].MinTime-es[i].At)
	}
	for i := range es {
		b = binary.AppendUvarint(b, uint64(es[i].MaxTime)-uint64(es[i].MinTime))
	}
	for i := range es {
		b = binary.AppendUvarint(b, es[i].ClaimEpoch)
	}
	region := ""
	for i := range es { // 0: as the one before, else its length + 1
		if es[i].HomeRegion == region {
			b = append(b, 0)
			continue
		}
		region = es[i].HomeRegion
		b = append(binary.AppendUvarint(b, uint64(len(region))+1), region...)
	}
	for i := range es {
		b = append(b, es[i].SHA256[:]...)
	}
	return b
}

// reader reads a payload. After the first error it returns zeros; end returns the error.
type reader struct {
	b       []byte
	version byte
	err     error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.b = nil
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes follow the entries", len(r.b))
	}
	return r.err
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail("cut short")
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	// One value has one encoding: a trailing zero byte would be a second one.
	if n <= 0 || n > 1 && r.b[n-1] == 0 {
		r.fail("not a number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	v := int64(u >> 1)
	if u&1 != 0 {
		v = ^v
	}
	return v
}

func (r *reader) text(limit int) string {
	n := r.uvarint()
	if n > uint64(limit) {
		r.fail("a text of %d bytes, at most %d", n, limit)
		return ""
	}
	return string(r.take(int(n)))
}

func (r *reader) entries(limit int) []Entry {
	groups := r.uvarint()
	// Each group has at least one entry, and an entry at least its hash.
	if groups > uint64(len(r.b)/len(identity.Digest{})) {
		r.fail("%d boots in %d bytes", groups, len(r.b))
		return nil
	}
	var out []Entry
	for range groups {
		if out = r.group(out, limit); r.err != nil {
			return nil
		}
	}
	// One set of entries has one form.
	if r.version != versionEpochs && r.version != versionOf(out) {
		r.fail("version %d of a file whose entries are of version %d", r.version, versionOf(out))
		return nil
	}
	for i := range out {
		if err := out[i].Validate(); err != nil {
			r.fail("%w", err)
			return nil
		}
		if i > 0 && out[i-1].Compare(&out[i]) >= 0 {
			r.fail("%s is out of order", out[i].ID)
			return nil
		}
	}
	return out
}

func (r *reader) group(out []Entry, limit int) []Entry {
	agent, boot := r.text(identity.MaxAgentIDBytes), r.text(identity.MaxBootIDBytes)
	n := r.uvarint()
	if r.err != nil || n == 0 || n > uint64(len(r.b)/len(identity.Digest{})) || n > uint64(limit-len(out)) {
		r.fail("%d entries of a boot", n)
		return out
	}
	if k := len(out); k > 0 && out[k-1].ID.Agent == agent && out[k-1].ID.Boot == boot {
		r.fail("boot %q/%q twice", agent, boot)
		return out
	}
	from := len(out)
	out = slices.Grow(out, int(n))[:from+int(n)]
	es := out[from:]
	starts := make([]uint64, n)
	for i := range starts {
		starts[i] = uint64(r.varint())
	}
	next := uint64(0)
	for i := range es {
		count := r.uvarint()
		start := next + starts[i]
		es[i] = Entry{ID: identity.Batch{Agent: agent, Boot: boot, SeqStart: start, SeqEnd: start + count}}
		next = start + count + 1
	}
	for i := range es {
		es[i].Outcome = Outcome(r.byte())
	}
	for i := range es {
		g := r.uvarint()
		if r.version >= versionInline {
			if g == 0 {
				es[i].Inline = true
				continue
			}
			g--
		}
		if g > 1<<32-1 {
			r.fail("generation %d", g)
		}
		es[i].Generation = uint32(g)
	}
	for i := range es {
		es[i].Bytes = r.uvarint()
	}
	last := int64(0)
	for i := range es {
		last += r.varint()
		es[i].At = last
	}
	for i := range es {
		es[i].MinTime = es[i].At + r.varint()
	}
	for i := range es {
		es[i].MaxTime = int64(uint64(es[i].MinTime) + r.uvarint())
	}
	for i := range es {
		es[i].ClaimEpoch = r.uvarint()
	}
	region := ""
	for i := range es {
		if k := r.uvarint(); k > maxRegionBytes+1 {
			r.fail("a region of %d bytes", k-1)
		} else if k > 0 {
			was := region
			if region = string(r.take(int(k - 1))); region == was {
				r.fail("a region is repeated")
			}
		}
		es[i].HomeRegion = region
	}
	for i := range es {
		copy(es[i].SHA256[:], r.take(len(es[i].SHA256)))
	}
	return out
}
