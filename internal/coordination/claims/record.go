package claims

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Values are binary, because the store keeps every one of them until it is compacted: a claim has some 90 bytes, where
// JSON would have 300. The first byte is the version of the format; docs/format/claims.md has the bytes.

// ErrCorrupt: a value that no release of this program wrote.
var ErrCorrupt = errors.New("corrupt")

// ErrNewer: a value of a later release.
var ErrNewer = errors.New("of a later version of the format")

// version of all values.
const version = 1

// MaxValue bounds a value.
const MaxValue = 64 << 10

// Marshal is the value of a claim; the start of the identity and its boot are in the key. The fence of a claim that is
// not durable yet is the revision of its key.
func (c Claim) Marshal() []byte {
	b := make([]byte, 0, 128)
	b = append(b, version, byte(c.State), c.flags())
	b = binary.AppendUvarint(b, c.Identity.SeqEnd-c.Identity.SeqStart)
	b = append(b, c.Hash[:]...)
	b = append(b, c.ID[:]...)
	b = binary.AppendUvarint(b, c.Stamp.Epoch)
	b = binary.AppendUvarint(b, uint64(c.ClaimedAt))
	if c.State != Claimed {
		b = binary.AppendUvarint(b, c.Stamp.Fence)
		b = binary.AppendUvarint(b, uint64(c.DurableAt))
	}
	return append(append(b, byte(len(c.Home))), c.Home...)
}

// Flags of a claim's value.
const (
	flagRecovered = 1 << iota
	flagBound
	flagsEnd
)

func (c Claim) flags() (f byte) {
	if c.Recovered {
		f |= flagRecovered
	}
	if c.Bound {
		f |= flagBound
	}
	return f
}

// ParseClaim reads the value of the claim of a boot that begins at start. Errors wrap ErrCorrupt or ErrNewer.
func ParseClaim(boot identity.Boot, start uint64, value []byte) (Claim, error) {
	d := decoder{b: value}
	d.version()
	c := Claim{State: State(d.byte())}
	flags := d.byte()
	c.Recovered, c.Bound = flags&flagRecovered != 0, flags&flagBound != 0
	more := d.uvarint()
	copy(c.Hash[:], d.bytes(len(c.Hash)))
	copy(c.ID[:], d.bytes(len(c.ID)))
	c.Stamp.Epoch = d.uvarint()
	c.ClaimedAt = d.time()
	if c.State != Claimed {
		c.Stamp.Fence = d.uvarint()
		c.DurableAt = d.time()
	}
	c.Home = d.region()
	if more > math.MaxUint64-start {
		d.fail("the end is beyond every sequence number")
	}
	c.Identity = identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: start, SeqEnd: start + more}
	switch {
	case d.err != nil:
	case c.State < Claimed || c.State > Settled || flags >= flagsEnd:
		d.fail("%s with flags %x", c.State, flags)
	case c.State != Claimed && flags != 0:
		d.fail("flags %x of a claim that is %s", flags, c.State)
	case c.Hash.IsZero() || c.ID.IsZero() || c.Stamp.Epoch == 0:
		d.fail("no hash, claim id or epoch")
	case c.State != Claimed && c.Stamp.Fence == 0:
		d.fail("durable without a fence")
	}
	if err := d.end(); err != nil {
		return Claim{}, fmt.Errorf("claim %s: %w", c.Identity, err)
	}
	return c, nil
}

// decoder reads a value; its first failure sticks.
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

func (d *decoder) version() {
	switch v := d.byte(); {
	case d.err != nil:
	case v > version:
		d.err, d.b = fmt.Errorf("version %d: %w", v, ErrNewer), nil
	case v != version:
		d.fail("version %d", v)
	}
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
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

// uvarint refuses longer forms than the shortest, so that equal records are equal bytes.
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

func (d *decoder) time() int64 {
	v := d.uvarint()
	if v > math.MaxInt64 {
		d.fail("time %d", v)
		return 0
	}
	return int64(v)
}

func (d *decoder) region() Region {
	r := Region(d.bytes(int(d.byte())))
	if d.err == nil && r.Validate() != nil {
		d.fail("region %q", string(r))
	}
	return r
}

// regions are a count, 1 to most, and as many regions, each once.
func (d *decoder) regions(most int) []Region {
	n := int(d.byte())
	if d.err == nil && (n == 0 || n > most) {
		d.fail("%d regions", n)
	}
	var out []Region
	for i := 0; i < n && d.err == nil; i++ {
		r := d.region()
		if slices.Contains(out, r) {
			d.fail("region %s twice", r)
		}
		out = append(out, r)
	}
	return out
}

func (d *decoder) end() error {
	if len(d.b) > 0 {
		d.fail("%d bytes follow its end", len(d.b))
	}
	return d.err
}
