"""What images are called, and which one a SWE instance wants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_celery.errors import BadInstance, ImageError
from prorl_celery.images.names import canonical, file_name, image_of, image_path, names_of
from prorl_celery.images.pull import wanted_by
from prorl_celery.settings import Settings

DIGEST = "@sha256:" + "0a" * 32
TEMPLATES = Settings().image_names


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("debian", "debian"),
        ("docker://docker.io/library/debian:latest", "debian"),
        ("index.docker.io/team/tools:v2", "team/tools:v2"),
        ("host:5000/team/tools", "host:5000/team/tools"),
        ("localhost/tools:latest", "localhost/tools"),
        ("ghcr.io/a/b:v1" + DIGEST, "ghcr.io/a/b" + DIGEST),
        ("swebench/sweb.eval.x86_64.django_1776_django-1:latest", "swebench/sweb.eval.x86_64.django_1776_django-1"),
    ],
)
def test_names_of_one_image_are_one(name, short):
    assert canonical(name) == short
    assert canonical(short) == short


@pytest.mark.parametrize(
    "name", ["", "a b", "../etc", "a/../b", "Debian", "-x", "a//b", "a:", "a@sha256:1", "x.sif", ".x"]
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ImageError, match="no image name"):
        canonical(name)


def test_the_file_of_a_swe_image_can_be_read_and_sits_in_its_folder(tmp_path):
    settings = Settings(images_dir=str(tmp_path))
    path = image_path("swebench/sweb.eval.x86_64.django_1776_django-1:v1", settings)
    assert path == tmp_path / "swebench+sweb.eval.x86_64.django_1776_django-1=v1"


PREFIXES = ("docker.io/", "index.docker.io/", "library/")
PART = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,120}[a-z0-9])?", fullmatch=True)
NAMES = st.builds(
    lambda parts, tag: "/".join(parts) + (f":{tag}" if tag else ""),
    st.lists(PART, min_size=1, max_size=4),
    st.one_of(st.none(), PART),
).filter(
    lambda name: not name.endswith((".sif", ".json", ":latest")) and not name.startswith(("docker.io/", "library/"))
)


@given(NAMES, NAMES)
def test_two_images_never_share_a_file(one, other):
    assert (canonical(one) == canonical(other)) == (file_name(one) == file_name(other))
    assert len(file_name(one).encode()) <= 200
    assert "/" not in file_name(one)


def test_a_path_is_itself_and_a_file_is_found_where_there_is_no_folder(tmp_path):
    settings = Settings(data_dir=tmp_path)
    images = tmp_path / "images"
    images.mkdir()
    assert image_path("/srv/x.sif", settings).as_posix() == "/srv/x.sif"
    assert image_path("python", settings) == images / "python"
    (images / "python.sif").touch()
    assert image_path("python", settings) == images / "python.sif"
    assert image_path("python.sif", settings) == images / "python.sif"
    (images / "python").mkdir()
    assert image_path("python", settings) == images / "python"


@pytest.mark.parametrize(
    ("instance", "names"),
    [
        (
            {"instance_id": "Project-MONAI__MONAI-3"},
            (
                "xingyaoww/sweb.eval.x86_64.project-monai_s_monai-3",
                "godcherry/sweb.eval.x86_64.project-monai_s_monai-3",
            ),
        ),
        ({"instance_id": "a__b-1", "image_assets": "{}"}, ("swebench/sweb.eval.x86_64.a_1776_b-1",)),
        ({"instance_id": "a__b-1", "data_source": "swe_Multimodal"}, ("swebench/sweb.eval.x86_64.a_1776_b-1",)),
        ({"instance_id": "a__b-1", "docker_image": "r2e/x:1"}, ("r2e/x:1",)),
        ({"instance_id": "a__b-1", "docker_image": "r2e/x:1", "image": "mine"}, ("mine",)),
    ],
)
def test_an_instance_names_its_image(instance, names):
    assert names_of(instance, TEMPLATES) == names


def test_where_images_come_from_is_a_setting(tmp_path):
    settings = Settings(images_dir=str(tmp_path), image_names=("mirror:5000/{1776}",))
    assert image_of({"instance_id": "a__b-1"}, settings) == tmp_path / "mirror=5000+a_1776_b-1"


@pytest.mark.parametrize(
    ("instance", "field"),
    [
        ({}, "instance_id"),
        ({"image": 3}, "image"),
        ({"docker_image": ""}, "docker_image"),
        ({"image": "../x"}, "image"),
    ],
)
def test_an_instance_without_an_image_is_told_its_field(instance, field, tmp_path):
    with pytest.raises(BadInstance) as told:
        image_of(instance, Settings(images_dir=str(tmp_path)))
    assert told.value.field == field


def test_each_image_of_a_data_set_is_wanted_once_and_paths_are_not():
    rows = [{"image": "a:latest"}, {"docker_image": "docker.io/a"}, {"image": "/srv/b.sif"}, {"instance_id": "c__d-1"}]
    wanted, local = wanted_by(rows, TEMPLATES)
    assert [one.name for one in wanted] == ["a", "xingyaoww/sweb.eval.x86_64.c_s_d-1"]
    assert local == 1
    with pytest.raises(BadInstance, match="instance 2: "):
        wanted_by([{"image": "a"}, {"image": "A B"}], TEMPLATES)
