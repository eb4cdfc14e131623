package storetest

import (
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// tags are replaced without a change of the object, where a store can.
func (t *suite) tags() {
	tagger, ok := t.s.(objstore.Tagger)
	if !ok {
		return // tags are optional
	}
	tags := map[string]string{"status": "committed", "transaction_id": "manifests/v1/date=2026-10-24/hour=00/0001-raw-0000000001.json@00ff"}
	t.want(tagger.SetTags(t.ctx(), "tags/absent", tags), objstore.ErrNotFound, "tags of an absent key")
	_, err := t.s.Create(t.ctx(), "tags/k", []byte("body"), objstore.PutOptions{Tags: map[string]string{"status": "pending"}})
	t.want(err, nil, "create with tags")
	before, err := t.s.Head(t.ctx(), "tags/k")
	t.want(err, nil, "head")
	for range 2 {
		t.want(tagger.SetTags(t.ctx(), "tags/k", tags), nil, "tags of an object")
	}
	after, err := t.s.Head(t.ctx(), "tags/k")
	t.want(err, nil, "head of a tagged object")
	if after.ETag != before.ETag || after.Size != before.Size || after.SHA256 != before.SHA256 {
		t.Errorf("tags changed the object: %+v, then %+v", before, after)
	}
}
