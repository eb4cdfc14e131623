package delta

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

type headerJSON struct {
	AuthorityID string     `json:"authority_id"`
	Shard       uint32     `json:"shard"`
	Shards      uint32     `json:"shards"`
	Records     uint64     `json:"records"`
	Boots       []bootJSON `json:"boots"`
}

type bootJSON struct {
	Agent   string `json:"agent_id"`
	Boot    string `json:"boot_id"`
	Batches []row  `json:"batches"`
}

// row is written as an array, as in a plan, with the hours at the end: pairs of a first hour, counted from 1970,
// and how many follow each other. The key is a short one.
type row Batch

// UnmarshalJSON reads the array.
func (r *row) UnmarshalJSON(raw []byte) error {
	var runs []int64
	fields := []any{&r.SeqStart, &r.SeqEnd, &r.FrameSHA256, &r.FrameBytes, &r.AcceptedAt, &r.MinTime, &r.MaxTime, &r.RawBlobKey, &runs}
	n := len(fields)
	if err := json.Unmarshal(raw, &fields); err != nil {
		return err
	}
	if len(fields) != n || len(runs)%2 != 0 {
		return fmt.Errorf("batch of %d fields, hours of %d numbers", len(fields), len(runs))
	}
	for ; len(runs) > 0; runs = runs[2:] {
		// Bounded before it is expanded: the numbers are not checked yet.
		if runs[1] < 1 || runs[1] > int64(MaxBatchHours-len(r.Hours)) {
			return fmt.Errorf("%d hours from %d on", runs[1], runs[0])
		}
		for i := range runs[1] {
			r.Hours = append(r.Hours, timegrid.Hour(runs[0]+i))
		}
	}
	return nil
}

// marshalHeader writes the canonical JSON of a valid delta.
func (d *Delta) marshalHeader() []byte {
	b := Kind.Begin(512 + 256*len(d.Batches))
	b = record.AppendString(append(b, `,"authority_id":`...), d.AuthorityID)
	b = fmt.Appendf(b, `,"shard":%d,"shards":%d,"records":%d,"boots":[`, uint32(d.Shard), d.Shards, d.Records())
	for i := range d.Batches {
		e := &d.Batches[i]
		switch {
		case i > 0 && d.Batches[i-1].BootOf() == e.BootOf():
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
	return append(b, `]}]}`...)
}

func appendRow(b []byte, e *Batch) []byte {
	b = strconv.AppendUint(append(b, '['), e.SeqStart, 10)
	b = strconv.AppendUint(append(b, ','), e.SeqEnd, 10)
	b = append(hex.AppendEncode(append(b, `,"`...), e.FrameSHA256[:]), '"')
	b = strconv.AppendUint(append(b, ','), e.FrameBytes, 10)
	for _, t := range [...]int64{e.AcceptedAt, e.MinTime, e.MaxTime} {
		b = strconv.AppendInt(append(b, ','), t, 10)
	}
	b = append(record.AppendString(append(b, ','), layout.ShortFrameKey(e.RawBlobKey, e.Identity, e.FrameSHA256)), ',', '[')
	for i := 0; i < len(e.Hours); {
		n := 1
		for i+n < len(e.Hours) && e.Hours[i+n] == e.Hours[i]+timegrid.Hour(n) {
			n++
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(e.Hours[i]), 10)
		b = strconv.AppendInt(append(b, ','), int64(n), 10)
		i += n
	}
	return append(b, ']', ']')
}

// parse reads a header, which must be that of the key.
func parse(authority, key string, header []byte) (*Delta, error) {
	d, err := parseHeader(header)
	if err == nil && (d.Key() != key || d.AuthorityID != authority) {
		err = fmt.Errorf("it is %s of the authority %.128q", d.Key(), d.AuthorityID)
	}
	if err != nil {
		return nil, Kind.Wrap(key, err)
	}
	return d, nil
}

func parseHeader(b []byte) (*Delta, error) {
	var j headerJSON
	if err := Kind.Decode(b, &j); err != nil {
		return nil, err
	}
	if j.Shard >= shard.Max {
		return nil, fmt.Errorf("shard %d", j.Shard)
	}
	d := &Delta{AuthorityID: j.AuthorityID, Shard: shard.ID(j.Shard), Shards: j.Shards}
	for _, boot := range j.Boots {
		for _, r := range boot.Batches {
			r.Identity.Agent, r.Identity.Boot = boot.Agent, boot.Boot
			r.RawBlobKey = layout.LongFrameKey(r.RawBlobKey, r.Identity, r.FrameSHA256)
			d.Batches = append(d.Batches, Batch(r))
		}
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	// Only the canonical form has the hash that names the object; the count of records is checked with it.
	if err := Kind.Verify(b, d.marshalHeader(), j); err != nil {
		return nil, err
	}
	d.header = bytes.Clone(b)
	d.setName()
	return d, nil
}
