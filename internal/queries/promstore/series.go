package promstore

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
)

type seriesSet struct {
	reading
	found []merged
	at    int
	join  func() error // what is left to do before the first series; nil when there is nothing
	err   error
}

func (s *seriesSet) Next() bool {
	if s.join != nil {
		s.err, s.join = s.join(), nil
	}
	s.at++
	return s.err == nil && s.at < len(s.found)
}

func (s *seriesSet) At() storage.Series {
	return &readSeries{&s.reading, &s.found[s.at]}
}

func (s *seriesSet) Err() error                      { return s.err }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

type readSeries struct {
	*reading
	*merged
}

func (s *readSeries) Labels() labels.Labels { return s.labels }

func (s *readSeries) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it, ok := reuse.(*iterator[int64])
	if !ok {
		it = &iterator[int64]{}
	}
	it.reset(s.reading, s.merged)
	return it
}
