package rollup

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// PlanKind is the kind of plans; docs/protocol/rollup.md has their JSON.
var PlanKind = record.Kind{Schema: "lightmetrics.rollup_plan.v1", Title: "rollup plan", MaxBytes: 64 << 20, Exact: true}

// Bounds of a plan.
const (
	MaxPlanInputs = 400_000
	MaxParts      = 4096
)

// Plan is the fixed set of inputs of one generation of a shard's hour. Every worker that makes the generation
// makes it from the plan, and so makes the same objects.
type Plan struct {
	AuthorityID string
	Shard       shard.ID
	// Shards is the authority's number of shards.
	Shards     uint32
	Hour       timegrid.Hour
	Generation uint64
	// Parts in which the hour is built, one after the other; at least 1.
	Parts uint32
	// Inputs in the order of their identities.
	Inputs []accepted.Batch
	// Journal are the positions through which the worker had read the journal when it fixed the inputs; nil: the plan
	// does not say. Every accepted batch of the shard's agents at or before them that has samples in the hour is an
	// input, or in a delta, or was known to the worker and left out: its frame could not be read, or its agent is set
	// aside. Then it stays pending in the record of the shard's progress. What expired with all blocks of the hour is no
	// input of the next generation.
	Journal *journal.Positions
}

// Key of the plan's object.
func (p *Plan) Key() string { return layout.RollupPlan(p.Hour, p.Shard, p.Generation) }

// Order returns the claims of the inputs, for a Builder.
func (p *Plan) Order() []accepted.Claim {
	out := make([]accepted.Claim, len(p.Inputs))
	for i := range p.Inputs {
		out[i] = p.Inputs[i].Claim()
	}
	return out
}

// InputSet returns the inputs as a block records them.
func (p *Plan) InputSet() (catalog.Inputs, error) {
	ids := make([]identity.Batch, len(p.Inputs))
	for i := range p.Inputs {
		ids[i] = p.Inputs[i].Identity
	}
	return catalog.NewInputs(ids)
}

// Records is the number of records of all inputs.
func (p *Plan) Records() uint64 {
	var n uint64
	for i := range p.Inputs {
		n += p.Inputs[i].Identity.Count()
	}
	return n
}

type planJSON struct {
	AuthorityID string     `json:"authority_id"`
	Shard       uint32     `json:"shard"`
	Shards      uint32     `json:"shards"`
	Hour        string     `json:"hour"`
	Generation  uint64     `json:"generation"`
	Parts       uint32     `json:"parts"`
	Boots       []planBoot `json:"boots"`

	Journal *journal.Positions `json:"journal,omitempty"`
}

type planBoot struct {
	Agent   string    `json:"agent_id"`
	Boot    string    `json:"boot_id"`
	Batches []planRow `json:"batches"`
}

// planRow is written as an array: an hour has up to 400,000 batches, and names would double
// the 170 bytes that each takes. The key is a short one.
type planRow accepted.Batch

func (b *planRow) UnmarshalJSON(raw []byte) error {
	fields := []any{&b.SeqStart, &b.SeqEnd, &b.FrameSHA256, &b.FrameBytes, &b.AcceptedAt, &b.MinTime, &b.MaxTime, &b.RawBlobKey}
	n := len(fields)
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	if len(fields) != n {
		return fmt.Errorf("batch of %d fields", len(fields))
	}
	return nil
}

// hourLayout is how the JSON writes the start of an hour.
const hourLayout = "2006-01-02T15"

// Marshal writes the canonical JSON of a valid plan: equal plans have equal bytes.
func (p *Plan) Marshal() ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("rollup plan: %w", err)
	}
	b := PlanKind.Begin(512 + planRowBytes*len(p.Inputs))
	b = record.AppendString(append(b, `,"authority_id":`...), p.AuthorityID)
	b = fmt.Appendf(b, `,"shard":%d,"shards":%d,"hour":"%s","generation":%d,"parts":%d,"boots":[`, uint32(p.Shard), p.Shards, p.Hour, p.Generation, p.Parts)
	for i := range p.Inputs {
		// Inputs are sorted by identity, so batches of one boot are neighbours.
		e := &p.Inputs[i]
		switch {
		case i > 0 && p.Inputs[i-1].BootOf() == e.BootOf():
			b = append(b, ',')
		default:
			if i > 0 {
				b = append(b, `]},`...)
			}
			b = record.AppendString(append(b, `{"agent_id":`...), e.Agent)
			b = record.AppendString(append(b, `,"boot_id":`...), e.Boot)
			b = append(b, `,"batches":[`...)
		}
		b = appendRow(b, e)
	}
	b = append(b, `]}]`...)
	if p.Journal != nil {
		b = append(append(b, `,"journal":`...), record.JSON(p.Journal)...)
	}
	return append(b, '}'), nil
}

// planRowBytes approximates the size of a batch in a plan, so that the buffer is allocated once.
const planRowBytes = 176

// appendRow writes a planRow by hand: encoding 400,000 of them by reflection is slow.
func appendRow(b []byte, e *accepted.Batch) []byte {
	b = strconv.AppendUint(append(b, '['), e.SeqStart, 10)
	b = strconv.AppendUint(append(b, ','), e.SeqEnd, 10)
	b = append(hex.AppendEncode(append(b, `,"`...), e.FrameSHA256[:]), '"')
	b = strconv.AppendUint(append(b, ','), e.FrameBytes, 10)
	for _, t := range [...]int64{e.AcceptedAt, e.MinTime, e.MaxTime} {
		b = strconv.AppendInt(append(b, ','), t, 10)
	}
	return append(record.AppendString(append(b, ','), layout.ShortFrameKey(e.RawBlobKey, e.Identity, e.FrameSHA256)), ']')
}

// ParsePlan reads what Encode and Marshal write. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParsePlan(b []byte) (*Plan, error) {
	p, err := parsePlan(b)
	if err != nil {
		return nil, PlanKind.Wrap("", err)
	}
	return p, nil
}

func parsePlan(b []byte) (*Plan, error) {
	b, err := planText(b)
	if err != nil {
		return nil, err
	}
	var j planJSON
	if err := PlanKind.Decode(b, &j); err != nil {
		return nil, err
	}
	t, err := time.Parse(hourLayout, j.Hour)
	if err != nil {
		return nil, err
	}
	p := &Plan{
		AuthorityID: j.AuthorityID, Shard: shard.ID(j.Shard), Shards: j.Shards, Hour: timegrid.HourStarting(t),
		Generation: j.Generation, Parts: j.Parts, Journal: j.Journal,
	}
	for _, boot := range j.Boots {
		for _, b := range boot.Batches {
			b.Agent, b.Boot = boot.Agent, boot.Boot
			in := accepted.Batch(b)
			in.RawBlobKey = layout.LongFrameKey(b.RawBlobKey, in.Identity, in.FrameSHA256)
			p.Inputs = append(p.Inputs, in)
		}
	}
	// Workers must make equal objects from equal plans, so only the canonical form is accepted.
	own, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	return p, PlanKind.Verify(b, own, j)
}

func (p *Plan) validate() error {
	if err := shard.CheckCount(p.Shards); err != nil {
		return err
	}
	switch {
	case p.AuthorityID == "":
		return errors.New("no authority")
	case uint32(p.Shard) >= p.Shards:
		return fmt.Errorf("shard %s of %d", p.Shard, p.Shards)
	case p.Generation == 0:
		return errors.New("generation 0")
	case p.Parts == 0 || p.Parts > MaxParts:
		return fmt.Errorf("%d parts", p.Parts)
	case len(p.Inputs) == 0 || len(p.Inputs) > MaxPlanInputs:
		return fmt.Errorf("%d inputs, 1 to %d", len(p.Inputs), MaxPlanInputs)
	}
	for i := range p.Inputs {
		e := &p.Inputs[i]
		if err := e.Validate(); err != nil {
			return err
		}
		if got := shard.Of(e.Agent, p.Shards); got != p.Shard {
			return fmt.Errorf("%s is of shard %s", e.Identity, got)
		}
		if i > 0 && p.Inputs[i-1].Identity.Compare(e.Identity) >= 0 {
			return fmt.Errorf("%s is out of order", e.Identity)
		}
	}
	return catalog.ValidateReadThrough(p.Journal)
}
