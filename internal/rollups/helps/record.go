package helps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Kind is the kind of the record.
var Kind = record.Kind{Schema: "lightmetrics.metric_helps.v1", Title: "helps of metrics", MaxBytes: 16 << 20}

// Record is the record of an authority under layout.RollupHelpsKey.
type Record struct {
	AuthorityID string `json:"authority_id"`
	// Helps in the order of their names, each once.
	Helps []Help `json:"helps"`
}

// Validate refuses what no worker writes.
func (r *Record) Validate() error {
	if r.AuthorityID == "" {
		return errors.New("authority_id is empty")
	}
	longest, bytes := frame.DefaultLimits(), int64(0)
	for i := range r.Helps {
		h := &r.Helps[i]
		switch {
		case h.Name == "" || len(h.Name) > longest.LabelValueBytes || !utf8.ValidString(h.Name):
			return fmt.Errorf("name %.64q", h.Name)
		case h.Text == "" || len(h.Text) > longest.HelpBytes || !utf8.ValidString(h.Text):
			return fmt.Errorf("help of %.64q has %d bytes", h.Name, len(h.Text))
		case h.Agent == "":
			return fmt.Errorf("%.64q has no agent_id", h.Name)
		case i > 0 && cmp.Compare(r.Helps[i-1].Name, h.Name) >= 0:
			return fmt.Errorf("%.64q is out of order", h.Name)
		}
		bytes += h.Bytes()
	}
	if bytes > MaxBytes {
		return fmt.Errorf("%d helps of %d bytes, at most %d", len(r.Helps), bytes, MaxBytes)
	}
	return nil
}

// Marshal writes the canonical JSON: equal records are equal bytes.
func (r Record) Marshal() []byte {
	if r.Helps == nil {
		r.Helps = []Help{}
	}
	return Kind.Marshal(r)
}

// Parse reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(b []byte) (Record, error) {
	var r Record
	err := Kind.Unmarshal(b, &r)
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		return Record{}, Kind.Wrap("", err)
	}
	return r, nil
}

// Read reads the helps of an authority and the record's ETag, which it also gives with the error of a record that can't be
// used, as far as it is known. Without a record it is objstore.ErrNotFound. One of another authority is record.ErrCorrupt.
func Read(ctx context.Context, g objstore.Getter, authority string) (*Set, string, error) {
	r, info, err := record.Read(ctx, g, layout.RollupHelpsKey, Kind, Parse)
	if err == nil && r.AuthorityID != authority {
		err = Kind.Corrupt(layout.RollupHelpsKey, "it is of the authority %.128q", r.AuthorityID)
	}
	if err != nil {
		return nil, info.ETag, err
	}
	s := &Set{}
	for _, h := range r.Helps {
		s.Add(h)
	}
	return s, info.ETag, nil
}

// Writer is what Write needs of the store.
type Writer interface {
	objstore.Creator
	objstore.Replacer
}

// Write creates the record (etag "") or replaces the one with the ETag, and returns the new ETag. The errors are those of
// the store. What the record has no room for is dropped from the set.
func Write(ctx context.Context, w Writer, authority string, s *Set, etag string) (string, error) {
	s.Bound()
	b := Record{authority, s.List()}.Marshal()
	for len(b) > Kind.MaxBytes { // control characters are escaped, and six times as long
		s.shrink(s.bytes / 2)
		b = Record{authority, s.List()}.Marshal()
	}
	key, o := layout.RollupHelpsKey, objstore.PutOptions{ContentType: "application/json"}
	var info objstore.Info
	var err error
	if etag == "" {
		info, err = w.Create(ctx, key, b, o)
	} else {
		info, err = w.Replace(ctx, key, b, etag, o)
	}
	if err != nil {
		return "", fmt.Errorf("write %q: %w", key, err)
	}
	return info.ETag, nil
}
