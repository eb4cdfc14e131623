package s3api

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

const (
	xmlns      = "http://s3.amazonaws.com/doc/2006-03-01/"
	timeFormat = "2006-01-02T15:04:05.000Z"
)

func stamp(t time.Time) string { return t.UTC().Format(timeFormat) }

// writeXML answers with a value as XML.
func (c *call) writeXML(v any) error {
	out, err := xml.Marshal(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/xml")
	_, _ = io.WriteString(c.w, xml.Header+string(out)) // the client went away: nothing to do
	return nil
}

func (c *call) listBuckets() error {
	if err := c.authorize("ListAllMyBuckets", "*", "", nil); err != nil {
		return err
	}
	most, err := c.maxBuckets()
	if err != nil {
		return err
	}
	type bucket struct{ Name, CreationDate, BucketRegion string }
	var out struct {
		XMLName           xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
		Owner             struct{ ID, DisplayName string }
		Buckets           struct{ Bucket []bucket }
		Prefix            string `xml:",omitempty"`
		ContinuationToken string `xml:",omitempty"`
	}
	out.Owner.ID, out.Owner.DisplayName = c.user.Name, c.user.Name
	out.Prefix = c.query.get("prefix")
	list, after := &out.Buckets.Bucket, c.query.get("continuation-token")
	for _, b := range c.Engine.Buckets() { // by name
		if !strings.HasPrefix(b.Name, out.Prefix) || b.Name <= after {
			continue
		}
		if len(*list) == most {
			out.ContinuationToken = (*list)[most-1].Name // the last that is there
			break
		}
		*list = append(*list, bucket{b.Name, stamp(b.Created), c.Region})
	}
	return c.writeXML(out)
}

// maxBuckets reads max-buckets; there are fewer buckets than the most that it may be.
func (c *call) maxBuckets() (int, error) {
	const most = 10000
	text := c.query.get("max-buckets")
	if !c.query.has("max-buckets") {
		return most, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, s3err.Argument("max-buckets", text, "Argument max-buckets must be an integer between 1 and 10000.")
	}
	return n, nil
}

func (c *call) createBucket() error {
	if err := c.authorize("CreateBucket", c.bucket, "", nil); err != nil {
		return err
	}
	settings, err := c.newBucketACL()
	if err != nil {
		return err
	}
	lock, err := c.newBucketLock()
	if err != nil {
		return err
	}
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return err
	}
	if len(body) > 0 {
		var conf struct {
			XMLName            xml.Name `xml:"CreateBucketConfiguration"`
			LocationConstraint string
			Location, Bucket   *struct{}
			Tags               struct{ Tag []tag }
		}
		switch {
		case s3xml.Decode(body, &conf) != nil:
			return s3err.MalformedXML
		// The first region of all has no name here on AWS.
		case conf.LocationConstraint != "" && (conf.LocationConstraint != c.Region || c.OnlyRegion && conf.LocationConstraint == "us-east-1"):
			return s3err.InvalidLocation.Detail("LocationConstraint", conf.LocationConstraint)
		case conf.Location != nil || conf.Bucket != nil:
			return s3err.NotImplemented.With("Location and Bucket of CreateBucketConfiguration are not implemented.")
		}
		tags, err := checkBucketTags(pairsOf(conf.Tags.Tag))
		if err != nil {
			return err
		}
		text, err := encodeTagging(tags)
		if err != nil {
			return err
		}
		if text != nil {
			settings[settingTagging] = text
		}
	}
	if lock != nil {
		settings[engine.SettingLock] = lock
	}
	err = c.Engine.CreateBucketWith(c.r.Context(), engine.Bucket{Name: c.bucket, Created: c.Now(), Settings: settings})
	if errors.Is(err, engine.ErrTooLarge) {
		return s3err.TooManyBuckets
	}
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/"+c.bucket)
	c.w.Header().Set("X-Amz-Bucket-Arn", "arn:aws:s3:::"+c.bucket)
	c.w.WriteHeader(http.StatusOK)
	return nil
}

func (c *call) headBucket() error {
	if err := c.authorizeBucket("ListBucket"); err != nil {
		return err
	}
	c.w.Header().Set("X-Amz-Bucket-Region", c.Region)
	c.w.WriteHeader(http.StatusOK)
	return nil
}

func (c *call) deleteBucket() error {
	if err := c.authorizeBucket("DeleteBucket"); err != nil {
		return err
	}
	versioned := c.versioned(c.bucket)
	if err := c.Engine.DeleteBucket(c.r.Context(), c.bucket); err != nil {
		if versioned && errors.Is(err, engine.ErrBucketNotEmpty) {
			return s3err.BucketNotEmpty.With("The bucket you tried to delete is not empty. You must delete all versions in the bucket.")
		}
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) bucketLocation() error {
	if err := c.authorizeBucket("GetBucketLocation"); err != nil {
		return err
	}
	region := c.Region
	if region == "us-east-1" {
		region = "" // as AWS answers
	}
	return c.writeXML(struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ LocationConstraint"`
		Region  string   `xml:",chardata"`
	}{Region: region})
}
