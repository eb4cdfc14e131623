package rollup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// PlanSchema names the JSON schema of plans; docs/protocol/rollup.md has it.
const PlanSchema = "lightmetrics.rollup_plan.v1"

// Bounds of a plan. A reader refuses longer objects unread.
const (
	MaxPlanInputs = 400_000
	MaxPlanBytes  = 64 << 20
	MaxParts      = 4096
)

// ErrPlan is wrapped by every error of a plan that can't be read.
var ErrPlan = errors.New("invalid rollup plan")

// Plan is the fixed input set of one generation of a shard's hour. Whoever makes the
// generation makes it from the plan, and so makes the same objects.
type Plan struct {
	AuthorityID string
	Shard       shard.ID
	// Shards is the authority's number of shards.
	Shards     uint32
	Hour       window.Hour
	Generation uint64
	// Parts that the hour is built in, one after the other; at least 1.
	Parts uint32
	// Inputs in the order of their identities.
	Inputs []intake.Entry
}

// Key of the plan's object.
func (p *Plan) Key() string { return layout.RollupPlan(p.Hour, p.Shard, p.Generation) }

// Order of the inputs for a Builder.
func (p *Plan) Order() []Input {
	out := make([]Input, len(p.Inputs))
	for i := range p.Inputs {
		out[i] = Input{p.Inputs[i].Identity(), p.Inputs[i].AcceptedAt}
	}
	return out
}

// InputSet is what the published set says of the inputs.
func (p *Plan) InputSet() (catalog.Inputs, error) {
	ids := make([]identity.Batch, len(p.Inputs))
	for i := range p.Inputs {
		ids[i] = p.Inputs[i].Identity()
	}
	return catalog.NewInputs(ids)
}

// Records of all inputs.
func (p *Plan) Records() uint64 {
	var n uint64
	for i := range p.Inputs {
		n += p.Inputs[i].Identity().Count()
	}
	return n
}

type planJSON struct {
	Schema      string     `json:"schema"`
	AuthorityID string     `json:"authority_id"`
	Shard       uint32     `json:"shard"`
	Shards      uint32     `json:"shards"`
	Hour        string     `json:"hour"`
	Generation  uint64     `json:"generation"`
	Parts       uint32     `json:"parts"`
	Boots       []planBoot `json:"boots"`
}

type planBoot struct {
	Agent   string      `json:"agent_id"`
	Boot    string      `json:"boot_id"`
	Batches []planBatch `json:"batches"`
}

// planBatch is written as an array, since an hour has many.
type planBatch struct {
	start, end uint64
	sha        identity.Digest
	bytes      uint64
	key        string // "" for generation 0 of the blob
	acceptedAt int64
	minT, maxT int64
}

func (b planBatch) MarshalJSON() ([]byte, error) {
	key, err := json.Marshal(b.key)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `[%d,%d,"%s",%d,%d,%d,%d,%s]`, b.start, b.end, b.sha, b.bytes, b.acceptedAt, b.minT, b.maxT, key), nil
}

func (b *planBatch) UnmarshalJSON(raw []byte) error {
	fields := []any{&b.start, &b.end, &b.sha, &b.bytes, &b.acceptedAt, &b.minT, &b.maxT, &b.key}
	n := len(fields)
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	if len(fields) != n {
		return fmt.Errorf("batch of %d fields", len(fields))
	}
	return nil
}

// hourLayout of an hour's start in JSON.
const hourLayout = "2006-01-02T15"

// Marshal writes the canonical JSON: equal plans are equal bytes. Errors wrap ErrPlan.
func (p *Plan) Marshal() ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	j := planJSON{
		Schema: PlanSchema, AuthorityID: p.AuthorityID, Shard: uint32(p.Shard), Shards: p.Shards, Hour: p.Hour.String(),
		Generation: p.Generation, Parts: p.Parts, Boots: []planBoot{},
	}
	for i := range p.Inputs {
		e := &p.Inputs[i]
		if n := len(j.Boots); n == 0 || j.Boots[n-1].Agent != e.AgentID || j.Boots[n-1].Boot != e.BootID {
			j.Boots = append(j.Boots, planBoot{Agent: e.AgentID, Boot: e.BootID})
		}
		b := planBatch{
			start: e.SeqStart, end: e.SeqEnd, sha: e.FrameSHA256, bytes: e.FrameBytes,
			acceptedAt: e.AcceptedAt, minT: e.MinTime, maxT: e.MaxTime,
		}
		if e.RawBlobKey != layout.Blob(e.FrameSHA256, 0) {
			b.key = e.RawBlobKey
		}
		boot := &j.Boots[len(j.Boots)-1]
		boot.Batches = append(boot.Batches, b)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(j); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

// ParsePlan reads what Marshal writes, and nothing else. Errors wrap ErrPlan.
func ParsePlan(b []byte) (*Plan, error) {
	p, err := parsePlan(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	if again, err := p.Marshal(); err != nil {
		return nil, err
	} else if !bytes.Equal(again, b) {
		return nil, fmt.Errorf("%w: not in its canonical form", ErrPlan)
	}
	return p, nil
}

func parsePlan(b []byte) (*Plan, error) {
	if len(b) > MaxPlanBytes {
		return nil, fmt.Errorf("%d bytes, at most %d", len(b), MaxPlanBytes)
	}
	var j planJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, err
	}
	if j.Schema != PlanSchema {
		return nil, fmt.Errorf("schema is %.64q", j.Schema)
	}
	t, err := time.Parse(hourLayout, j.Hour)
	if err != nil {
		return nil, err
	}
	p := &Plan{
		AuthorityID: j.AuthorityID, Shard: shard.ID(j.Shard), Shards: j.Shards, Hour: window.HourStarting(t),
		Generation: j.Generation, Parts: j.Parts,
	}
	for _, boot := range j.Boots {
		for _, b := range boot.Batches {
			if b.key == "" {
				b.key = layout.Blob(b.sha, 0)
			}
			p.Inputs = append(p.Inputs, intake.Entry{
				AgentID: boot.Agent, BootID: boot.Boot, SeqStart: b.start, SeqEnd: b.end, FrameSHA256: b.sha,
				FrameBytes: b.bytes, RawBlobKey: b.key, AcceptedAt: b.acceptedAt, MinTime: b.minT, MaxTime: b.maxT,
			})
		}
	}
	return p, nil
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
		if got := shard.Of(e.AgentID, p.Shards); got != p.Shard {
			return fmt.Errorf("%s is of shard %s", e.Identity(), got)
		}
		if i > 0 && p.Inputs[i-1].Identity().Compare(e.Identity()) >= 0 {
			return fmt.Errorf("%s is out of order", e.Identity())
		}
	}
	return nil
}
