package folds

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Objects are binary: an identity of a regular boot has 3 bytes and its digest. Both end with nothing but what is written here;
// a head ends with the SHA-256 of what precedes it, and a part is named by the SHA-256 of all of it.
const (
	version  = 1
	kindHead = 1
	kindPart = 2
)

// MaxObject bounds a head or part.
const MaxObject = 8 << 20

// Errors of objects.
var (
	// ErrCorrupt: bytes that no release wrote.
	ErrCorrupt = errors.New("corrupt")
	// ErrNewer: an object of a later release.
	ErrNewer = errors.New("of a later version of the format")
)

// Marshal is the object of the head.
func (h Head) Marshal() []byte {
	b := appendBoot(make([]byte, 0, 256+48*len(h.Parts)+24*len(h.Tail)), kindHead, h.Boot)
	b = binary.AppendUvarint(b, h.Generation)
	b = binary.AppendUvarint(b, uint64(len(h.Parts)))
	at := uint64(0)
	for _, p := range h.Parts {
		b = append(b, p.Name[:]...)
		b = binary.AppendUvarint(b, p.Start-at)
		b = binary.AppendUvarint(b, p.End-p.Start)
		b = binary.AppendUvarint(b, p.Count)
		at = p.Start
	}
	b = appendEntries(b, h.Tail)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// sealed is the part of entries, of which there is one at least, and its object.
func sealed(boot identity.Boot, entries []Entry) (Part, []byte) {
	body := appendEntries(appendBoot(make([]byte, 0, 256+24*len(entries)), kindPart, boot), entries)
	return Part{Name: sha256.Sum256(body), Start: entries[0].Start, End: entries[len(entries)-1].End, Count: uint64(len(entries))}, body
}

func appendBoot(b []byte, kind byte, boot identity.Boot) []byte {
	b = append(b, version, kind)
	for _, s := range []string{boot.Agent, boot.Boot} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

func appendEntries(b []byte, entries []Entry) []byte {
	var homes []claims.Region
	for _, e := range entries {
		if !slices.Contains(homes, e.Home) {
			homes = append(homes, e.Home)
		}
	}
	b = append(b, byte(len(homes)))
	for _, r := range homes {
		b = append(append(b, byte(len(r))), r...)
	}
	b = binary.AppendUvarint(b, uint64(len(entries)))
	at := uint64(0)
	for _, e := range entries {
		b = binary.AppendUvarint(b, e.Start-at)
		b = binary.AppendUvarint(b, e.End-e.Start)
		b = append(b, byte(slices.Index(homes, e.Home)))
		b = append(b, e.Digest[:]...)
		at = e.End
	}
	return b
}

// ParseHead reads the object of a boot's head. Errors wrap ErrCorrupt or ErrNewer.
func ParseHead(boot identity.Boot, body []byte) (Head, error) {
	d := decoder{b: body}
	d.begin(kindHead, boot)
	if d.err == nil {
		n := len(body) - sha256.Size
		if n < 0 || sha256.Sum256(body[:max(n, 0)]) != [sha256.Size]byte(body[max(n, 0):]) {
			d.fail("its checksum is not that of its bytes")
		} else {
			d.b = d.b[:len(d.b)-sha256.Size]
		}
	}
	h := Head{Boot: boot, Generation: d.uvarint()}
	n := d.uvarint()
	if d.err == nil && (n > MaxParts || h.Generation == 0) {
		d.fail("generation %d with %d parts", h.Generation, n)
	}
	at := uint64(0)
	for i := uint64(0); i < n && d.err == nil; i++ {
		var p Part
		copy(p.Name[:], d.bytes(len(p.Name)))
		p.Start = d.plus(at)
		p.End = d.plus(p.Start)
		p.Count = d.uvarint()
		at = p.Start
		switch last := len(h.Parts) - 1; {
		case d.err != nil:
		case p.Count == 0 || p.Count > MaxEntries || p.End-p.Start < p.Count-1:
			d.fail("part %s has %d entries from %d to %d", p.Name, p.Count, p.Start, p.End)
		case last >= 0 && compareParts(h.Parts[last], p) >= 0:
			d.fail("part %d does not follow the one before", i)
		}
		h.Parts = append(h.Parts, p)
	}
	h.Tail = d.entries()
	if err := d.end(); err != nil {
		return Head{}, fmt.Errorf("head of folds of boot %s: %w", boot, err)
	}
	return h, nil
}

// ParsePart reads the object of a part. Errors wrap ErrCorrupt or ErrNewer.
func ParsePart(boot identity.Boot, p Part, body []byte) ([]Entry, error) {
	d := decoder{b: body}
	d.begin(kindPart, boot)
	if d.err == nil && sha256.Sum256(body) != p.Name {
		d.fail("its name is not that of its bytes")
	}
	es := d.entries()
	if n := len(es); d.err == nil && (uint64(n) != p.Count || es[0].Start != p.Start || es[n-1].End != p.End) {
		d.fail("it does not have the %d entries from %d to %d", p.Count, p.Start, p.End)
	}
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("part %s of folds of boot %s: %w", p.Name, boot, err)
	}
	return es, nil
}

// decoder reads an object; its first failure sticks.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	}
	d.b = nil
}

// begin reads what both kinds begin with.
func (d *decoder) begin(kind byte, boot identity.Boot) {
	switch v := d.bytes(2); {
	case d.err != nil:
	case v[0] > version:
		d.err, d.b = fmt.Errorf("version %d: %w", v[0], ErrNewer), nil
	case v[0] != version || v[1] != kind:
		d.fail("version %d, kind %d", v[0], v[1])
	}
	for _, s := range []string{boot.Agent, boot.Boot} {
		if got := d.bytes(d.count(math.MaxUint16)); d.err == nil && string(got) != s {
			d.fail("it is of another boot")
		}
	}
}

func (d *decoder) bytes(n int) []byte {
	if d.err != nil {
		return nil
	}
	if len(d.b) < n {
		d.fail("it ends early")
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// uvarint refuses longer forms than the shortest, so that equal heads are equal bytes.
func (d *decoder) uvarint() uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail("a number is not one")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) count(most uint64) int {
	n := d.uvarint()
	if n > most {
		d.fail("a count of %d, at most %d", n, most)
		return 0
	}
	return int(n)
}

// plus is a number that is stored as what it has more than another.
func (d *decoder) plus(at uint64) uint64 {
	n := d.uvarint()
	if n > math.MaxUint64-at {
		d.fail("a number is beyond every sequence number")
		return 0
	}
	return at + n
}

func (d *decoder) entries() []Entry {
	homes := make([]claims.Region, 0, claims.MaxHomes)
	for range d.byte() {
		r := claims.Region(d.bytes(int(d.byte())))
		if d.err == nil && (r.Validate() != nil || slices.Contains(homes, r)) {
			d.fail("region %q", string(r))
		}
		if homes = append(homes, r); d.err != nil {
			return nil
		}
	}
	n := d.count(MaxEntries)
	// An entry has 19 bytes at least: a count without its bytes takes no memory.
	if d.err == nil && n*(len(Digest{})+3) > len(d.b) {
		d.fail("%d entries in %d bytes", n, len(d.b))
	}
	if d.err != nil {
		return nil
	}
	var out []Entry
	used, at := 0, uint64(0)
	for i := 0; i < n && d.err == nil; i++ {
		e := Entry{Start: d.plus(at)}
		e.End = d.plus(e.Start)
		h := int(d.byte())
		copy(e.Digest[:], d.bytes(len(e.Digest)))
		switch {
		case d.err != nil:
			return nil
		case i > 0 && e.Start == at:
			d.fail("entry %d does not follow the one before", i)
		case h >= len(homes) || h > used:
			d.fail("entry %d has home %d of %d", i, h, len(homes))
		default:
			used = max(used, h+1)
			e.Home = homes[h]
			out, at = append(out, e), e.End
		}
	}
	if d.err == nil && used != len(homes) {
		d.fail("%d homes of %d are used", used, len(homes))
	}
	return out
}

func (d *decoder) end() error {
	if len(d.b) > 0 {
		d.fail("%d bytes follow its end", len(d.b))
	}
	return d.err
}
