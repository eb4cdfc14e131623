package rollup

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
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
	b := make([]byte, 0, 512+planBatchBytes*len(p.Inputs))
	b = appendString(append(b, `{"schema":`...), PlanSchema)
	b = appendString(append(b, `,"authority_id":`...), p.AuthorityID)
	b = fmt.Appendf(b, `,"shard":%d,"shards":%d,"hour":"%s","generation":%d,"parts":%d,"boots":[`, uint32(p.Shard), p.Shards, p.Hour, p.Generation, p.Parts)
	for i := range p.Inputs {
		e := &p.Inputs[i]
		switch {
		case i > 0 && p.Inputs[i-1].AgentID == e.AgentID && p.Inputs[i-1].BootID == e.BootID:
			b = append(b, ',')
		default:
			if i > 0 {
				b = append(b, `]},`...)
			}
			b = appendString(append(b, `{"agent_id":`...), e.AgentID)
			b = appendString(append(b, `,"boot_id":`...), e.BootID)
			b = append(b, `,"batches":[`...)
		}
		b = appendBatch(b, e)
	}
	return append(b, `]}]}`...), nil
}

// planBatchBytes is about the size of a batch in a plan.
const planBatchBytes = 176

// appendBatch writes what planBatch reads.
func appendBatch(b []byte, e *intake.Entry) []byte {
	b = strconv.AppendUint(append(b, '['), e.SeqStart, 10)
	b = strconv.AppendUint(append(b, ','), e.SeqEnd, 10)
	b = append(hex.AppendEncode(append(b, `,"`...), e.FrameSHA256[:]), '"')
	b = strconv.AppendUint(append(b, ','), e.FrameBytes, 10)
	for _, t := range [...]int64{e.AcceptedAt, e.MinTime, e.MaxTime} {
		b = strconv.AppendInt(append(b, ','), t, 10)
	}
	key := e.RawBlobKey
	if key == layout.Blob(e.FrameSHA256, 0) {
		key = ""
	}
	return append(appendString(append(b, ','), key), ']')
}

// appendString writes a JSON string without escapes for HTML.
func appendString(b []byte, s string) []byte {
	if s == "" {
		return append(b, `""`...)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // strings always encode
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})...)
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
