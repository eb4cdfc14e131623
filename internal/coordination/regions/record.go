package regions

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// Kind of the record of the epoch.
var Kind = record.Kind{Schema: "lightmetrics.regions.v1", Title: "record of the regions", MaxBytes: 8 << 10}

// maxRetired bounds the names that are never used again.
const maxRetired = 64

// Record is the epoch, as it lies in the bucket of each region. It is replaced by If-Match alone, and its number only grows.
type Record struct {
	// Region whose bucket it lies in.
	Region claims.Region
	Number uint64
	ID     claims.ID
	// Regions that may claim.
	Regions []claims.Region
	// Retired are those that are gone for good.
	Retired []Retired
	// Joining are regions that take part since this epoch or one before it, and of which not everything that was prepared is known to be
	// folded yet: no epoch with them was open. One that was retired meanwhile may be among them.
	Joining []claims.Region
	// Cluster is the id of the etcd that the epoch was made on.
	Cluster uint64
	// Dissolved: the linearizer has ended. Regions has the last one, whose bucket is an authority of its own again.
	Dissolved bool
}

// Retired is a region that is gone for good.
type Retired struct {
	Name claims.Region
	// Done: what was decided there is in the folds of the others.
	Done bool
}

// names of regions that were retired.
func names(of []Retired) (out []claims.Region) {
	for _, t := range of {
		out = append(out, t.Name)
	}
	return out
}

// done are the same regions, of which the others have everything.
func done(of []Retired) (out []Retired) {
	for _, t := range of {
		out = append(out, Retired{t.Name, true})
	}
	return out
}

// Epoch of the record.
func (r Record) Epoch() claims.Epoch {
	return claims.Epoch{Number: r.Number, ID: r.ID, Regions: r.Regions}
}

// retired reports whether the record calls a region retired.
func (r Record) retired(n claims.Region) bool {
	return slices.ContainsFunc(r.Retired, func(t Retired) bool { return t.Name == n })
}

type recordJSON struct {
	Region  string        `json:"region"`
	Number  uint64        `json:"number"`
	ID      string        `json:"id"`
	Regions []string      `json:"regions"`
	Retired []retiredJSON `json:"retired,omitempty"`
	Joining []string      `json:"joining,omitempty"`
	Cluster string        `json:"cluster"`

	Dissolved bool `json:"dissolved,omitempty"`
}

type retiredJSON struct {
	Name string `json:"name"`
	Done bool   `json:"done"`
}

// Marshal writes the canonical JSON.
func (r Record) Marshal() []byte {
	j := recordJSON{Region: string(r.Region), Number: r.Number, ID: hex.EncodeToString(r.ID[:]), Cluster: fmt.Sprintf("%016x", r.Cluster), Dissolved: r.Dissolved}
	for _, n := range r.Regions {
		j.Regions = append(j.Regions, string(n))
	}
	for _, t := range r.Retired {
		j.Retired = append(j.Retired, retiredJSON{string(t.Name), t.Done})
	}
	for _, n := range r.Joining {
		j.Joining = append(j.Joining, string(n))
	}
	return Kind.Marshal(j)
}

// ParseRecord reads it; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRecord(b []byte) (Record, error) {
	var j recordJSON
	if err := Kind.Unmarshal(b, &j); err != nil {
		return Record{}, Kind.Wrap(layout.RegionsKey, err)
	}
	r := Record{Region: claims.Region(j.Region), Number: j.Number, Dissolved: j.Dissolved}
	err := r.Region.Validate()
	if id, e := hex.DecodeString(j.ID); e != nil || len(id) != len(r.ID) || hex.EncodeToString(id) != j.ID {
		err = fmt.Errorf("id %.40q is not %d bytes in hex", j.ID, len(r.ID))
	} else {
		copy(r.ID[:], id)
	}
	if n, e := fmt.Sscanf(j.Cluster, "%x", &r.Cluster); n != 1 || e != nil || fmt.Sprintf("%016x", r.Cluster) != j.Cluster {
		err = fmt.Errorf("cluster %.40q is not 16 hex digits", j.Cluster)
	}
	for _, n := range j.Regions {
		r.Regions = append(r.Regions, claims.Region(n))
	}
	for _, t := range j.Retired {
		n := claims.Region(t.Name)
		if e := n.Validate(); e != nil {
			err = e
		}
		if slices.Contains(r.Regions, n) || r.retired(n) {
			err = fmt.Errorf("region %s is retired, and there again", n)
		}
		r.Retired = append(r.Retired, Retired{n, t.Done})
	}
	for _, t := range j.Joining {
		n := claims.Region(t)
		if slices.Contains(r.Joining, n) || !slices.Contains(r.Regions, n) && !r.retired(n) {
			err = fmt.Errorf("region %.70q joins, and is none, or there twice", t)
		}
		r.Joining = append(r.Joining, n)
	}
	switch {
	case err != nil:
	case r.Dissolved && !slices.Equal(r.Regions, []claims.Region{r.Region}):
		err = fmt.Errorf("dissolved with the regions %v in the bucket of %s", r.Regions, r.Region)
	case len(r.Retired) > maxRetired:
		err = fmt.Errorf("%d retired regions", len(r.Retired))
	default:
		err = r.Epoch().Validate()
	}
	if err != nil {
		return Record{}, Kind.Wrap(layout.RegionsKey, err)
	}
	return r, nil
}

// readRecord reads the record of a region; objstore.ErrNotFound where it has none.
func readRecord(ctx context.Context, s Store) (Record, string, error) {
	r, info, err := record.Read(ctx, s, layout.RegionsKey, Kind, ParseRecord)
	return r, info.ETag, err
}

// writeRecord replaces the record that has the etag, or creates the first one, and gives its own etag. One that nobody could read is not
// written. An outcome that nobody knows is an error: whoever moves the epoch begins again, with a higher number.
func writeRecord(ctx context.Context, s Store, etag string, r Record) (string, error) {
	body := r.Marshal()
	if _, err := ParseRecord(body); err != nil {
		return "", err
	}
	o := objstore.PutOptions{ContentType: "application/json"}
	var info objstore.Info
	var err error
	if etag == "" {
		info, err = s.Create(ctx, layout.RegionsKey, body, o)
	} else {
		info, err = s.Replace(ctx, layout.RegionsKey, body, etag, o)
	}
	return info.ETag, err
}
