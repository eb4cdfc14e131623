package s3api

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	// leastPart is the least size of a part but the last, bytes; AWS has the same limit.
	leastPart = 5 << 20
	// maxCompleteBytes bounds the list of parts of CompleteMultipartUpload.
	maxCompleteBytes = 4 << 20
	fullObject       = "FULL_OBJECT"
	composite        = "COMPOSITE"
)

func noSuchUpload(id string) error { return s3err.NoSuchUpload.Detail("UploadId", id) }

var errChecksumType = s3err.InvalidRequest.With("Value for x-amz-checksum-type header is invalid.")

// checksumChoice reads the algorithm and the type of a new upload's checksum.
func checksumChoice(h http.Header) (engine.Checksum, error) {
	c := engine.Checksum{Algorithm: strings.ToUpper(h.Get("X-Amz-Checksum-Algorithm")), Type: strings.ToUpper(h.Get("X-Amz-Checksum-Type"))}
	switch {
	case c.Type != "" && c.Type != fullObject && c.Type != composite:
		return c, errChecksumType
	case c.Algorithm == "" && c.Type != "":
		return c, s3err.InvalidRequest.With("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
	case c.Algorithm == "":
		return c, nil
	case checksum.New(c.Algorithm) == nil:
		return c, errNoAlgorithm
	}
	linear := checksum.Combines(c.Algorithm)
	switch {
	case c.Type == "" && c.Algorithm == "CRC64NVME":
		c.Type = fullObject
	case c.Type == "":
		c.Type = composite
	case c.Type == fullObject && !linear, c.Type == composite && c.Algorithm == "CRC64NVME":
		return c, s3err.InvalidRequest.With("The %s checksum type cannot be used with the %s checksum algorithm.", c.Type, strings.ToLower(c.Algorithm))
	}
	return c, nil
}

func (c *call) createUpload() error {
	o := engine.Object{Bucket: c.bucket, Key: c.key}
	if err := c.authorizeUpload(false); err != nil {
		return err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	err := c.describe(&o, nil)
	if err == nil {
		err = readStoredHeaders(c.r.Header, &o)
	}
	if err == nil {
		o.Checksum, err = checksumChoice(c.r.Header)
	}
	if err != nil {
		return err
	}
	o.Modified = c.Now()
	id, err := c.Engine.CreateUpload(c.r.Context(), o)
	if errors.Is(err, engine.ErrTooLarge) {
		return s3err.MetadataTooLarge
	}
	if err != nil {
		return err
	}
	c.setEncryption(c.Engine.Seals())
	if o.Checksum.Algorithm != "" {
		c.setHeader("X-Amz-Checksum-Algorithm", o.Checksum.Algorithm)
		c.setHeader("X-Amz-Checksum-Type", o.Checksum.Type)
	}
	return c.writeXML(struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: c.bucket, Key: c.key, UploadId: id})
}

// authorizeUpload checks that the caller may write the object. Only what makes the object is an operation that creates
// it, so that policies can ask for conditions there and not of the parts.
func (c *call) authorizeUpload(creates bool) error {
	ctx := writeContext(c.r.Header)
	ctx[0].Value = strconv.FormatBool(creates)
	return c.authorize("PutObject", c.bucket, c.key, ctx)
}

// uploadOf gives the upload that the request names.
func (c *call) uploadOf() (string, engine.Object, error) {
	id := c.query.get("uploadId")
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return id, engine.Object{}, err
	}
	up, err := c.Engine.Upload(c.bucket, c.key, id)
	if errors.Is(err, engine.ErrNoUpload) {
		return id, up, noSuchUpload(id)
	}
	return id, up, err
}

func (c *call) partNumber() (int, error) {
	text := c.query.get("partNumber")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > engine.MaxParts {
		return 0, s3err.Argument("partNumber", text, "Part number must be an integer between 1 and %d, inclusive.", engine.MaxParts)
	}
	return n, nil
}

// writtenPart gives the number of the part that the request writes, once its sender may write it and the bucket is there.
func (c *call) writtenPart() (int, error) {
	if err := c.authorizeUpload(false); err != nil {
		return 0, err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return 0, err
	}
	return c.partNumber()
}

func (c *call) uploadPart() error {
	n, err := c.writtenPart()
	if err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil {
		return err
	}
	d, err := c.readExpectations()
	if err != nil {
		return err
	}
	if err := d.ofUpload(up.Checksum); err != nil {
		return err
	}
	if err := c.Engine.CheckPartQuota(c.bucket, id, n, d.decodedLen); err != nil {
		return err
	}
	u, err := c.receiveWithin(d, -1) // the parts of an object are files
	if err != nil {
		return err
	}
	defer u.release()
	p, err := c.storePart(id, n, u)
	if err != nil {
		return err
	}
	c.setHeader("ETag", `"`+p.ETag+`"`)
	c.setEncryption(c.Engine.Seals())
	sum := p.Checksum
	if sum.Algorithm == "" {
		sum = defaultSum(p.CRC64)
	}
	if sum.Algorithm != "" {
		c.w.Header().Set(checksum.Header(sum.Algorithm), sum.Value)
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// defaultSum gives the default checksum that is kept beside that of a part; nil: none.
func defaultSum(crc64 []byte) engine.Checksum {
	if crc64 == nil {
		return engine.Checksum{}
	}
	return engine.Checksum{Algorithm: checksum.Default, Value: base64.StdEncoding.EncodeToString(crc64)}
}

// ofUpload gives the digest of a part the algorithm of its upload. The object of an upload without one gets the default
// checksum, so that of the parts is kept, whatever else their clients give.
func (d *digest) ofUpload(want engine.Checksum) error {
	switch {
	case want.Algorithm == "":
		d.both = d.algorithm != checksum.Default
		return nil
	case want.Algorithm == d.algorithm:
		return nil
	case d.algorithm == "" && want.Type == fullObject:
		d.algorithm, d.computed = want.Algorithm, true
		return nil
	}
	got := d.algorithm
	if got == "" {
		got = "null"
	}
	return s3err.InvalidRequest.With("Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s", want.Algorithm, got)
}

// storePart commits a body as a part.
func (c *call) storePart(id string, n int, u *upload) (engine.Part, error) {
	p := engine.Part{Number: n, Object: engine.Object{Size: u.size, ETag: u.etag, Checksum: u.sum, CRC64: u.crc64, Modified: c.Now()}}
	x, err := u.blob.Finish()
	if err != nil {
		return p, err
	}
	p.Extents = []engine.Extent{x}
	p, err = c.Engine.PutPart(c.r.Context(), c.bucket, c.key, id, p)
	if err == nil || errors.Is(err, engine.ErrPoisoned) || errors.Is(err, engine.ErrClosed) {
		u.blob = nil // the record names the file, or may name it
	}
	if errors.Is(err, engine.ErrNoUpload) {
		return p, noSuchUpload(id)
	}
	return p, err
}

func (c *call) uploadPartCopy() error {
	n, err := c.writtenPart()
	if err != nil {
		return err
	}
	from, err := copySource(c.r.Header.Get("X-Amz-Copy-Source"))
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("GetObject", from.bucket, from.key, from.version, nil); err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil {
		return err
	}
	src, err := c.openSource(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := sourceConditionsOf(c.r.Header).check(src.Object.ETag, src.Object.Modified); err != nil {
		return s3err.PreconditionFailed
	}
	off, size, err := copyRange(c.r.Header.Get("X-Amz-Copy-Source-Range"), src.Object.Size)
	if err != nil {
		return err
	}
	if size > c.MaxObjectBytes {
		return s3err.InvalidRequest.With("The specified copy source is larger than the maximum allowable size for a copy source: %d", c.MaxObjectBytes)
	}
	if err := c.Engine.CheckPartQuota(c.bucket, id, n, size); err != nil {
		return err
	}
	d := &digest{decodedLen: size, algorithm: up.Checksum.Algorithm, both: up.Checksum.Algorithm == ""}
	u := &upload{size: size}
	defer func() { u.release() }()
	if err := c.receiveFile(u, d, &source{Reader: &blockReader{h: src, off: off, size: off + size}}); err != nil {
		return err
	}
	u.etag, u.crc64 = hex.EncodeToString(d.gotMD5[:]), d.gotCRC64
	if d.algorithm != "" {
		u.sum = engine.Checksum{Algorithm: d.algorithm, Type: up.Checksum.Type, Value: d.checksumText()}
	}
	p, err := c.storePart(id, n, u)
	if err != nil {
		return err
	}
	c.setEncryption(c.Engine.Seals())
	sum := checksumOf(p.Checksum)
	sum.ChecksumType = ""
	return c.writeXML(struct {
		XMLName      xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyPartResult"`
		ETag         string
		LastModified string
		checksumXML
	}{ETag: `"` + p.ETag + `"`, LastModified: stamp(p.Modified), checksumXML: sum})
}

// copyRange reads x-amz-copy-source-range, bytes=first-last; without one it is all of the source.
func copyRange(text string, size int64) (off, n int64, err error) {
	if text == "" {
		return 0, size, nil
	}
	malformed := s3err.Argument("x-amz-copy-source-range", text, "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy")
	spec, ok := strings.CutPrefix(text, "bytes=")
	a, b, dash := strings.Cut(spec, "-")
	first, aerr := strconv.ParseUint(a, 10, 62)
	last, berr := strconv.ParseUint(b, 10, 62)
	if !ok || !dash || aerr != nil || berr != nil || first > last {
		return 0, 0, malformed
	}
	if int64(last) >= size {
		return 0, 0, s3err.Argument("x-amz-copy-source-range", text, "Range specified is not valid for source object of size: %d", size)
	}
	return int64(first), int64(last-first) + 1, nil
}

func (c *call) abortUpload() error {
	if err := c.authorize("AbortMultipartUpload", c.bucket, c.key, nil); err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil && !errors.Is(err, engine.ErrCorrupt) {
		return err
	}
	if want := c.r.Header.Get("X-Amz-If-Match-Initiated-Time"); want != "" {
		t, err := http.ParseTime(want)
		if err != nil {
			return s3err.Argument("x-amz-if-match-initiated-time", want, "The time must be an HTTP date.")
		}
		if t.Unix() != up.Modified.Unix() {
			return s3err.PreconditionFailed.Failed("If-Match-Initiated-Time")
		}
	}
	err = c.Engine.AbortUpload(context.WithoutCancel(c.r.Context()), c.bucket, c.key, id)
	if errors.Is(err, engine.ErrNoUpload) {
		return noSuchUpload(id)
	}
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// completedPart is a part in the request to complete.
type completedPart struct {
	PartNumber *int
	ETag       *string
	checksumXML
}

// completedParts has at most MaxParts parts: the rest of a longer list is not kept, which could take many times the
// memory of its text.
type completedParts []completedPart

// UnmarshalXML is called for each part.
func (l *completedParts) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	if len(*l) == engine.MaxParts {
		return errTooManyParts
	}
	var p completedPart
	if err := d.DecodeElement(&p, &start); err != nil {
		return err
	}
	*l = append(*l, p)
	return nil
}

var errTooManyParts = errors.New("too many parts")

func (c *call) completeUpload() error {
	id := c.query.get("uploadId")
	cond, err := writeCondition(c.r.Header)
	if err != nil {
		return err
	}
	if err := c.authorizeUpload(true); err != nil {
		return err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	whole, err := wholeSum(c.r.Header)
	if err != nil {
		return err
	}
	// The checksum is that of the object, and not of this body.
	for name := range c.r.Header {
		if strings.HasPrefix(name, "X-Amz-Checksum-") || name == "X-Amz-Sdk-Checksum-Algorithm" {
			c.r.Header.Del(name)
		}
	}
	body, err := c.readAll(maxCompleteBytes)
	if err != nil {
		return err
	}
	var in struct {
		XMLName xml.Name       `xml:"CompleteMultipartUpload"`
		Part    completedParts `xml:"Part"`
	}
	switch {
	case len(body) == 0:
		return s3err.InvalidRequest.With("You must specify at least one part")
	case xml.Unmarshal(body, &in) != nil || len(in.Part) == 0:
		return s3err.MalformedXML
	}
	up, err := c.Engine.Upload(c.bucket, c.key, id)
	if errors.Is(err, engine.ErrNoUpload) {
		return c.completedBefore(id)
	}
	if err != nil {
		return err
	}
	if whole.Type != "" && whole.Type != up.Checksum.Type {
		return s3err.InvalidRequest.With("The upload was created using the %s checksum mode. The complete request must use the same checksum mode.", orNull(up.Checksum.Type))
	}
	parts, err := c.chooseParts(id, up, in.Part)
	if err != nil {
		return err
	}
	o := up
	if err := c.sumUp(&o, parts, whole); err != nil {
		return err
	}
	o.Modified = c.Now()
	if err := c.defaultLock(&o); err != nil {
		return err
	}
	o, err = c.Engine.Complete(c.r.Context(), o, id, parts, cond)
	switch {
	case errors.Is(err, engine.ErrNoUpload):
		return c.completedBefore(id)
	case errors.Is(err, engine.ErrPartChanged):
		return s3err.InvalidPart.Detail("UploadId", id)
	case errors.Is(err, engine.ErrTooLarge):
		return s3err.EntityTooLarge
	case err != nil:
		return c.unwrapCondition(cond, err)
	}
	return c.writeCompleted(o)
}

// completedBefore answers a complete of an upload that is gone: it is repeated where the object is of this upload, as
// by who did not get the answer.
func (c *call) completedBefore(id string) error {
	o, err := c.Engine.Stat(c.bucket, c.key)
	if err == nil && o.Upload == id && id != "" {
		return c.writeCompleted(o)
	}
	return noSuchUpload(id)
}

func (c *call) writeCompleted(o engine.Object) error {
	c.setEncryption(o.Sealed())
	c.setMade(o.Version)
	return c.writeXML(struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
		Location, Bucket, Key string
		ETag                  string
		checksumXML
	}{Location: c.objectURL(), Bucket: c.bucket, Key: c.key, ETag: `"` + o.ETag + `"`, checksumXML: checksumOf(o.Checksum)})
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return s
}

// wholeSum reads the checksum of the whole object that the client expects.
func wholeSum(h http.Header) (engine.Checksum, error) {
	s := engine.Checksum{Type: strings.ToUpper(h.Get("X-Amz-Checksum-Type"))}
	if s.Type != "" && s.Type != fullObject && s.Type != composite {
		return s, errChecksumType
	}
	for _, a := range checksum.Algorithms {
		v := h.Get(checksum.Header(a))
		if v == "" {
			continue
		}
		if s.Algorithm != "" {
			return s, s3err.InvalidRequest.With("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
		}
		plain, count, dash := strings.Cut(v, "-")
		if n, err := strconv.Atoi(count); dash && (err != nil || n < 1) || !checksum.Valid(a, plain) {
			return s, s3err.InvalidRequest.With("Value for %s header is invalid.", checksum.Header(a))
		}
		s.Algorithm, s.Value = a, v
	}
	return s, nil
}

// chooseParts finds the parts that a request to complete names, and checks them.
func (c *call) chooseParts(id string, up engine.Object, named []completedPart) ([]engine.Part, error) {
	if err := checkOrder(named); err != nil {
		return nil, err
	}
	have, _, err := c.Engine.Parts(c.bucket, c.key, id, 0, engine.MaxParts)
	if errors.Is(err, engine.ErrNoUpload) {
		return nil, noSuchUpload(id)
	}
	if err != nil {
		return nil, err
	}
	parts := make([]engine.Part, 0, len(named))
	for i, n := range named {
		last := *n.PartNumber
		missing := s3err.InvalidPart.With("One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.").Detail("UploadId", id).Detail("PartNumber", strconv.Itoa(last)).Detail("ETag", unquote(*n.ETag))
		at, ok := slices.BinarySearchFunc(have, last, func(p engine.Part, n int) int { return p.Number - n })
		if !ok {
			return nil, missing
		}
		p := have[at]
		if i < len(named)-1 && p.Size < leastPart {
			return nil, s3err.EntityTooSmall.Detail("ProposedSize", strconv.FormatInt(p.Size, 10)).Detail("MinSizeAllowed", strconv.Itoa(leastPart))
		}
		if unquote(*n.ETag) != p.ETag {
			return nil, missing
		}
		if err := n.checkSum(up.Checksum, p, missing); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// checkOrder checks what needs no look at the parts.
func checkOrder(named []completedPart) error {
	last := 0
	for _, n := range named {
		switch {
		case n.PartNumber == nil || n.ETag == nil:
			return s3err.MalformedXML
		case *n.PartNumber < 1:
			return s3err.Argument("PartNumber", strconv.Itoa(*n.PartNumber), "PartNumber must be >= 1")
		case *n.PartNumber <= last:
			return s3err.InvalidPartOrder
		}
		last = *n.PartNumber
	}
	return nil
}

// checkSum compares the checksum that a request to complete gives for a part.
func (n *completedPart) checkSum(want engine.Checksum, p engine.Part, missing error) error {
	algorithm, value := "", ""
	for _, a := range checksum.Algorithms {
		switch given := *n.field(a); {
		case given == "":
		case algorithm != "" || !checksum.Valid(a, given):
			return s3err.Argument("Checksum", given, "Invalid Base64 or multiple checksums present in request")
		default:
			algorithm, value = a, given
		}
	}
	have := p.Checksum
	if algorithm == checksum.Default && p.CRC64 != nil {
		have = defaultSum(p.CRC64)
	}
	switch {
	case algorithm == "" && want.Type == composite:
		return s3err.InvalidRequest.With("The upload was created using a %s checksum. The complete request must include the checksum for each part. It was missing for part %d in the request.", strings.ToLower(want.Algorithm), p.Number)
	case algorithm == "", algorithm == have.Algorithm && value == have.Value:
		return nil
	case algorithm == have.Algorithm || have.Algorithm == "":
		return missing
	}
	return s3err.BadDigest.With("The %s you specified for part %d did not match what we received.", strings.ToLower(algorithm), p.Number)
}

// sumUp gives an object the size, the ETag and the checksum that its parts make.
func (c *call) sumUp(o *engine.Object, parts []engine.Part, whole engine.Checksum) error {
	tag := md5.New()
	o.Size = 0
	for _, p := range parts {
		raw, err := hex.DecodeString(p.ETag)
		if err != nil {
			return fmt.Errorf("part %d of %q has the ETag %q", p.Number, o.Key, p.ETag)
		}
		tag.Write(raw)
		o.Size += p.Size
	}
	o.ETag = fmt.Sprintf("%x-%d", tag.Sum(nil), len(parts))
	if text := c.r.Header.Get("X-Amz-Mp-Object-Size"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
			return s3err.InvalidRequest.With("Value for x-amz-mp-object-size header is invalid: '%s'", text)
		case n < 0:
			return s3err.InvalidRequest.With("Value for x-amz-mp-object-size header is less than zero: '%d'", n)
		case n != o.Size:
			return s3err.InvalidRequest.With("The provided 'x-amz-mp-object-size' header value %d does not match what was computed: %d", o.Size, n)
		}
	}
	if o.Checksum.Algorithm == "" && useDefault(parts) {
		o.Checksum = engine.Checksum{Algorithm: checksum.Default, Type: fullObject}
	}
	a := o.Checksum.Algorithm
	if whole.Algorithm != "" && whole.Algorithm != a {
		// It cannot be computed from the parts. Ignoring it would say that the object has it.
		return s3err.InvalidRequest.With("Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s", orNull(a), whole.Algorithm)
	}
	if a == "" {
		return nil
	}
	sum, err := combine(o.Checksum, parts)
	if err != nil {
		return err
	}
	o.Checksum.Value = sum
	if whole.Algorithm != "" && whole.Value != sum {
		plain, _, _ := strings.Cut(sum, "-")
		if whole.Value != plain {
			return s3err.BadDigest.With("The %s you specified did not match the calculated checksum.", a)
		}
	}
	return nil
}

// useDefault makes the default checksum that of the parts, beside which they may have others. Parts of an earlier release
// lack it, and with them the object does.
func useDefault(parts []engine.Part) bool {
	for i := range parts {
		switch p := &parts[i]; {
		case p.Checksum.Algorithm == checksum.Default:
		case p.CRC64 == nil:
			return false
		default:
			p.Checksum = defaultSum(p.CRC64)
		}
	}
	return true
}

// combine makes the checksum of the whole of those of the parts.
func combine(c engine.Checksum, parts []engine.Part) (string, error) {
	var all []byte
	for i, p := range parts {
		raw, err := base64.StdEncoding.DecodeString(p.Checksum.Value)
		if err != nil || p.Checksum.Algorithm != c.Algorithm {
			return "", s3err.InvalidRequest.With("Part %d has no %s checksum.", p.Number, c.Algorithm)
		}
		switch {
		case c.Type == composite || i == 0:
			all = append(all, raw...)
		default:
			all = checksum.Combine(c.Algorithm, all, raw, p.Size)
		}
	}
	if c.Type != composite {
		return base64.StdEncoding.EncodeToString(all), nil
	}
	h := checksum.New(c.Algorithm)
	h.Write(all)
	return fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(h.Sum(nil)), len(parts)), nil
}

type partXML struct {
	PartNumber   int
	LastModified string
	ETag         string
	Size         int64
	checksumXML
}

func (c *call) listParts() error {
	if err := c.authorize("ListMultipartUploadParts", c.bucket, c.key, nil); err != nil {
		return err
	}
	id, up, err := c.uploadOf()
	if err != nil {
		return err
	}
	limit, err := c.limit("max-parts")
	if err != nil {
		return err
	}
	after, err := c.number("part-number-marker", 0)
	if err != nil {
		return err
	}
	var out struct {
		XMLName              xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListPartsResult"`
		Bucket, Key          string
		UploadId             string
		Initiator, Owner     owner
		StorageClass         string
		PartNumberMarker     int
		NextPartNumberMarker int
		MaxParts             int
		IsTruncated          bool
		ChecksumAlgorithm    string
		ChecksumType         string
		Part                 []partXML `xml:",omitempty"`
	}
	out.Bucket, out.Key, out.UploadId, out.StorageClass = c.bucket, c.key, id, "STANDARD"
	out.Initiator, out.Owner = owner{c.user.Name, c.user.Name}, owner{c.user.Name, c.user.Name}
	out.PartNumberMarker, out.MaxParts = after, limit
	// AWS says null, in so many letters, where the upload has none.
	out.ChecksumAlgorithm, out.ChecksumType = orNull(up.Checksum.Algorithm), orNull(up.Checksum.Type)
	if limit > 0 {
		parts, more, err := c.Engine.Parts(c.bucket, c.key, id, after, limit)
		if errors.Is(err, engine.ErrNoUpload) {
			return noSuchUpload(id)
		}
		if err != nil {
			return err
		}
		out.IsTruncated = more
		for _, p := range parts {
			sum := checksumOf(p.Checksum)
			sum.ChecksumType = ""
			out.Part = append(out.Part, partXML{p.Number, stamp(p.Modified), `"` + p.ETag + `"`, p.Size, sum})
			out.NextPartNumberMarker = p.Number
		}
	}
	return c.writeXML(out)
}

// limit reads a parameter that bounds a page.
func (c *call) limit(name string) (int, error) {
	n, err := c.number(name, maxListKeys)
	return min(n, maxListKeys), err
}

// number reads a parameter that is a number, not below zero.
func (c *call) number(name string, absent int) (int, error) {
	text := c.query.get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	switch {
	case err != nil:
		return 0, s3err.Argument(name, text, "Provided %s not an integer or within integer range", text)
	case n < 0:
		return 0, s3err.Argument(name, text, "Argument %s must be an integer between 0 and 2147483647", text)
	}
	return int(n), nil
}

type uploadXML struct {
	Key, UploadId     string
	Initiator, Owner  owner
	StorageClass      string
	Initiated         string
	ChecksumAlgorithm string `xml:",omitempty"`
	ChecksumType      string `xml:",omitempty"`
}

type prefixXML struct{ Prefix string }

func (c *call) listUploads() error {
	if err := c.authorizeBucket("ListBucketMultipartUploads"); err != nil {
		return err
	}
	limit, err := c.limit("max-uploads")
	if err != nil {
		return err
	}
	q := engine.UploadQuery{Prefix: c.query.get("prefix"), Delimiter: c.query.get("delimiter"),
		AfterKey: c.query.get("key-marker"), AfterID: c.query.get("upload-id-marker"), Max: limit}
	if q.AfterKey == "" {
		q.AfterID = "" // AWS ignores it without a key
	}
	if q.AfterID != "" && !engine.ValidUploadID(q.AfterID) {
		return s3err.Argument("upload-id-marker", q.AfterID, "Invalid uploadId marker")
	}
	name := func(s string) string { return s }
	encoding := c.query.get("encoding-type")
	switch encoding {
	case "":
	case "url":
		name = func(s string) string { return string(appendURL(nil, s)) }
	default:
		return s3err.InvalidArgument.With("Invalid Encoding Method specified in Request")
	}
	page, err := c.Engine.Uploads(c.bucket, q)
	if err != nil {
		return err
	}
	var out struct {
		XMLName            xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListMultipartUploadsResult"`
		Bucket             string
		KeyMarker          string
		UploadIdMarker     string
		NextKeyMarker      string `xml:",omitempty"`
		NextUploadIdMarker string `xml:",omitempty"`
		Prefix             string
		Delimiter          string `xml:",omitempty"`
		EncodingType       string `xml:",omitempty"`
		MaxUploads         int
		IsTruncated        bool
		Upload             []uploadXML `xml:",omitempty"`
		CommonPrefixes     []prefixXML `xml:",omitempty"`
	}
	out.Bucket, out.KeyMarker, out.UploadIdMarker, out.EncodingType = c.bucket, name(q.AfterKey), q.AfterID, encoding
	out.Prefix, out.Delimiter, out.MaxUploads, out.IsTruncated = name(q.Prefix), name(q.Delimiter), limit, page.Truncated
	if page.Truncated {
		out.NextKeyMarker, out.NextUploadIdMarker = name(page.NextKey), page.NextID
	}
	me := owner{c.user.Name, c.user.Name}
	for _, u := range page.Uploads {
		out.Upload = append(out.Upload, uploadXML{name(u.Key), u.ID, me, me, "STANDARD", stamp(u.Initiated), u.Checksum.Algorithm, u.Checksum.Type})
	}
	for _, p := range page.Prefixes {
		out.CommonPrefixes = append(out.CommonPrefixes, prefixXML{name(p)})
	}
	return c.writeXML(out)
}
